"""Instance masks of detected objects pasted into the image, dense or as COCO's run lengths, on arrays.

Run lengths are alternating runs of 0 and 1 in column order, packed into text. The centers of a mask's corner cells lie
on its box's corners, as in TF's `reframe_box_masks`; or its cells fill its mask box, and between their centers log-odds
are interpolated, as the networks do that predict such masks.

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
# Below any side of a box that holds something, whether in pixels or in 0..1 of the image: nothing is divided by 0.
_LEAST_SIDE = np.float32(1e-4)


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
    for into, (top, left, inside) in zip(whole, _windows(objects, threshold), strict=True):
        height, width = inside.shape
        into[top : top + height, left : left + width] = inside
    return whole


def mask_run_lengths(objects: Detections[Array], threshold: float = 0.5) -> Iterator[dict[str, Any]]:
    """Yield each object's mask in COCO's format, without making masks of the image's size.

    Args:
        objects: Those of an image, with masks.
        threshold: Values above it belong to the object.

    Yields:
        `{"size": [H, W], "counts": text}`, as pycocotools reads it.
    """
    for top, left, inside in _windows(objects, threshold):
        yield encode_window(inside, top, left, objects.image_size)


def _windows(objects: Detections[Array], threshold: float) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
    """Yield a window of the image for each object, beyond which its mask is 0: first row and column, and the mask."""
    if objects.masks is None:
        raise ValueError("these detections have no masks, as their detector predicts none")
    height, width = objects.image_size
    if objects.mask_boxes is not None:
        for mask, box in zip(objects.masks, objects.mask_boxes, strict=True):
            yield _covered(mask, box, threshold, objects.image_size)
        return
    boxes = objects.boxes / np.array([width, height, width, height], np.float32)
    for mask, box in zip(objects.masks, boxes, strict=True):
        rows = _axis(box[1], box[3], mask.shape[0], height)
        columns = _axis(box[0], box[2], mask.shape[1], width)
        values = rows.weights @ mask @ columns.weights.T
        yield rows.first, columns.first, (values > threshold).astype(np.uint8)


def _covered(mask: Floats, box: Floats, threshold: float, size: tuple[int, int]) -> tuple[int, int, NDArray[np.uint8]]:
    """Return the window of an object whose mask's cells fill its mask box."""
    above = mask > threshold
    if not above.any():
        return 0, 0, np.zeros((0, 0), np.uint8)
    # No pixel is above the threshold whose nearest cells are not; with those around it, the window's cells are few.
    axes = []
    for side in (0, 1):
        held, extent = np.flatnonzero(above.any(axis=1 - side)), above.shape[side]
        cells = (max(int(held[0]) - 1, 0), min(int(held[-1]) + 1, extent - 1))
        axes.append((cells, _cell_axis(box[1 - side], box[3 - side], extent, size[side], cells)))
    ((top, bottom), rows), ((left, right), columns) = axes
    values = rows.weights @ _log_odds(mask[top : bottom + 1, left : right + 1]) @ columns.weights.T
    return rows.first, columns.first, (values > _log_odds(np.float32(threshold))).astype(np.uint8)


# The odds of 0 and 1 are infinite, so that shares are kept between the nearest numbers that float32 has.
_LEAST, _MOST = np.finfo(np.float32).tiny, np.nextafter(np.float32(1), np.float32(0))


def _log_odds(shares: Any) -> Any:
    held = np.clip(shares, _LEAST, _MOST)
    return np.log(held) - np.log1p(-held)


def _cell_axis(start: Any, end: Any, extent: int, count: int, cells: tuple[int, int]) -> _Axis:
    """Return the weights of some of a mask's rows in the image's rows that they alone decide.

    Args:
        start: Where in the image the mask begins, in pixels.
        end: Where it ends.
        extent: Rows of the mask.
        count: Rows of the image.
        cells: The first and the last of the mask's rows.
    """
    scale = np.float32(extent) / np.maximum(end - start, _LEAST_SIDE)
    pixels = np.arange(count, dtype=np.float32) + np.float32(0.5)
    inside = (pixels >= start) & (pixels < end)
    # Half a cell at the mask's border has no other beyond, and takes the border's.
    positions = np.clip((pixels - start) * scale - np.float32(0.5), 0, np.float32(extent - 1))
    inside &= (positions >= cells[0]) & (positions <= cells[1])
    first, reached = int(inside.argmax()), positions[inside] - np.float32(cells[0])
    return _Axis(first, _between(reached, cells[1] - cells[0] + 1))


def _between(positions: Floats, extent: int) -> Floats:
    """Return the weights [n, extent] of rows for positions [n] between them."""
    below = np.floor(positions)
    share, rows = positions - below, np.arange(len(positions))
    weights = np.zeros((len(positions), extent), np.float32)
    np.add.at(weights, (rows, below.astype(np.int64)), 1 - share)
    above = below + 1 <= extent - 1
    np.add.at(weights, (rows[above], below[above].astype(np.int64) + 1), share[above])
    return weights


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
    return _Axis(first, _between(reached, extent))
