"""Instance masks of detected objects pasted into the image, dense or as run lengths, on arrays.

The centers of a mask's corner cells lie on its box's corners, as in TF's `reframe_box_masks`.

Dimensions: D objects, H W image, h w mask within its box.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.nn.ops.run_lengths import encode_window
from boxwright.types.found import FoundObjects

Floats = NDArray[np.float32]
_LEAST_SIDE = np.float32(1e-4)  # of a box, in 0..1 of the image


@dataclass(frozen=True)
class _Axis:
    """The rows (or columns) of an image that a mask covers: the first, and weights [n, h] of the mask's rows."""

    first: int
    weights: Floats


def whole_masks(objects: FoundObjects, threshold: float = 0.5) -> NDArray[np.uint8]:
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


def mask_run_lengths(objects: FoundObjects, threshold: float = 0.5) -> Iterator[dict[str, Any]]:
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


def _windows(objects: FoundObjects) -> Iterator[tuple[_Axis, _Axis, Floats]]:
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
