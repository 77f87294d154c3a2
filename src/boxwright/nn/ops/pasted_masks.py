"""Instance masks of detected objects pasted into the image, dense or as COCO's run lengths, on arrays.

Run lengths are alternating runs of 0 and 1 in column order, packed into text. The centers of a mask's corner cells lie
on its box's corners, as in TF's `reframe_box_masks`.

Dimensions: D objects, H W image, h w mask within its box, or window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from boxwright.types.detections import Array, Detections

# {"size": [H, W], "counts": packed text}
RunLengths = dict[str, Any]


def encode_mask(mask: NDArray[np.uint8]) -> RunLengths:
    """Return a mask, uint8 [H, W] of 0 and 1, as COCO's packed run lengths."""
    return _as_text(coco_mask.encode(np.asfortranarray(mask)))


def encode_window(window: NDArray[np.uint8], top: int, left: int, size: tuple[int, int]) -> RunLengths:
    """Return the run lengths of a mask that is 0 outside a window, uint8 [h, w], without making the mask."""
    height, width = size
    # The start and end of every run of ones within a column, in the image's column order.
    padded = np.zeros((window.shape[1], window.shape[0] + 2), np.int8)
    padded[:, 1:-1] = window.T
    steps = np.diff(padded, axis=1)
    columns, starts = np.nonzero(steps == 1)
    _, ends = np.nonzero(steps == -1)
    first = (left + columns) * height + top + starts
    last = (left + columns) * height + top + ends
    # A run ending at the bottom of a column and one starting at the top of the next are merged.
    apart = np.append(first[1:] != last[:-1], True) if len(first) else np.zeros(0, np.bool_)
    last = last[apart]
    first = first[np.insert(apart[:-1], 0, True)] if len(first) else first
    bounds = np.stack([first, last], axis=1).reshape(-1)
    counts = np.diff(np.concatenate([[0], bounds, [height * width]]))
    if len(bounds) and counts[-1] == 0:  # omitted by pycocotools too
        counts = counts[:-1]
    return _as_text(coco_mask.frPyObjects({"size": [height, width], "counts": counts.tolist()}, height, width))


def _as_text(code: dict[str, Any]) -> RunLengths:
    return {"size": list(map(int, code["size"])), "counts": code["counts"].decode()}


Floats = NDArray[np.float32]
_LEAST_SIDE = np.float32(1e-4)  # of a box, in 0..1 of the image


@dataclass(frozen=True)
class _Axis:
    """The rows (or columns) of an image that a mask covers: the first, and weights [n, h] of the mask's rows."""

    first: int
    weights: Floats


def whole_masks(objects: Detections[Array], threshold: float = 0.5) -> NDArray[np.uint8]:
    """Return which pixels of the image belong to each object.

    Args:
        objects: D objects of an image, with masks.
        threshold: Values above it belong to the object.

    Returns:
        uint8 [D, H, W] of 0 and 1.
    """
    whole = np.zeros((len(objects), *objects.image_size), np.uint8)
    for into, (rows, columns, values) in zip(whole, _windows(objects), strict=True):
        height, width = values.shape
        into[rows.first : rows.first + height, columns.first : columns.first + width] = values > threshold
    return whole


def mask_run_lengths(objects: Detections[Array], threshold: float = 0.5) -> Iterator[dict[str, Any]]:
    """Yield each object's mask in COCO's format, without making masks of the image's size.

    Args:
        objects: Those of an image, with masks.
        threshold: Values above it belong to the object.

    Yields:
        `{"size": [H, W], "counts": text}`, as pycocotools reads it.
    """
    for rows, columns, values in _windows(objects):
        inside = (values > threshold).astype(np.uint8)
        yield encode_window(inside, rows.first, columns.first, objects.image_size)


def _windows(objects: Detections[Array]) -> Iterator[tuple[_Axis, _Axis, Floats]]:
    if objects.masks is None:
        raise ValueError("these detections have no masks; a detector with number_of_stages: 3 predicts them")
    height, width = objects.image_size
    boxes = objects.boxes / np.array([width, height, width, height], np.float32)
    for mask, box in zip(objects.masks, boxes, strict=True):
        rows = _axis(box[1], box[3], mask.shape[0], height)
        columns = _axis(box[0], box[2], mask.shape[1], width)
        yield rows, columns, rows.weights @ mask @ columns.weights.T


def _axis(start: Any, end: Any, extent: int, count: int) -> _Axis:
    """Return the weights of a mask's rows in the image's rows within its box."""
    length, last = np.maximum(end - start, _LEAST_SIDE), np.float32(extent - 1)
    low, high = (np.float32(0) - start) / length, (np.float32(1) - start) / length
    if count == 1:
        positions = np.array([np.float32(0.5) * (low + high) * last])
    else:
        step = (high - low) * last / np.float32(count - 1)
        # In TF's order of operations, as `ops.roi.corners`: a rounding decides whether the last row lies in the mask.
        positions = low * last + np.arange(count, dtype=np.float32) * step
    inside = (positions >= 0) & (positions <= last)
    first, reached = int(inside.argmax()), positions[inside].astype(np.float32)
    below = np.floor(reached)
    share, rows = reached - below, np.arange(len(reached))
    weights = np.zeros((len(reached), extent), np.float32)
    np.add.at(weights, (rows, below.astype(np.int64)), 1 - share)
    above = below + 1 <= last
    np.add.at(weights, (rows[above], below[above].astype(np.int64) + 1), share[above])
    return _Axis(first, weights)
