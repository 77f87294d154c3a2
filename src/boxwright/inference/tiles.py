"""Detecting in a large image tile by tile, to find small objects.

Dimensions: V views, D detections.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boxwright.inference.merging import View
from boxwright.types import Finder, FoundObjects

Merge = Callable[[list[View]], FoundObjects]
# Tiles that a detector gets together: all of a large image would not fit in memory.
_AT_ONCE = 4


@dataclass(frozen=True)
class Window:
    """A part of an image, in its pixels."""

    top: int
    left: int
    height: int
    width: int

    def of(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return this part of an image, contiguous."""
        rows, columns = slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)
        return np.ascontiguousarray(image[rows, columns])


def tile_windows(height: int, width: int, tile: int, overlap: float) -> list[Window]:
    """Return equally overlapping square tiles of one size that cover an image.

    As few as the overlap allows, evenly spaced; the first and the last touch the image's borders. A side not longer
    than a tile has one tile of that length.

    Args:
        overlap: The least share of a tile that overlaps the next, in 0..1.
    """
    rows, columns = _starts(height, tile, overlap), _starts(width, tile, overlap)
    return [Window(top, left, min(tile, height), min(tile, width)) for top in rows for left in columns]


def _starts(length: int, tile: int, overlap: float) -> list[int]:
    if length <= tile:
        return [0]
    step = max(tile * (1 - overlap), 1.0)
    count = math.ceil((length - tile) / step) + 1
    # The side is longer than a tile, so that there are at least two.
    return [round(number * (length - tile) / (count - 1)) for number in range(count)]


def in_tiles(detect: Finder, tile: int, overlap: float, merge: Merge) -> Finder:
    """Return a finder that detects in an image's tiles and in the whole image, and merges the detections.

    The whole image is one of the views, for objects larger than a tile. An image that one tile covers is processed
    once.

    Args:
        tile: The tiles' side in pixels.
        overlap: As for `tile_windows`.
    """

    def find(images: Sequence[NDArray[np.uint8]]) -> list[FoundObjects]:
        return [_find(image) for image in images]

    def _find(image: NDArray[np.uint8]) -> FoundObjects:
        height, width = image.shape[:2]
        windows = tile_windows(height, width, tile, overlap)
        if len(windows) == 1:
            return detect([image])[0]
        found = detect([image])
        for first in range(0, len(windows), _AT_ONCE):
            found += detect([window.of(image) for window in windows[first : first + _AT_ONCE]])
        return merge(_views(found, [Window(0, 0, height, width), *windows], (height, width)))

    return find


def _views(found: list[FoundObjects], windows: list[Window], size: tuple[int, int]) -> list[View]:
    return [
        View(_moved(one, window, size), _cut(one, window, size)) for one, window in zip(found, windows, strict=True)
    ]


def _moved(found: FoundObjects, window: Window, size: tuple[int, int]) -> FoundObjects:
    """Return a window's detections in pixels of the image; anchors and cells no longer apply."""
    corner = np.array([window.left, window.top], np.float32)
    points = None if found.keypoints is None else found.keypoints + corner
    boxes = found.boxes + np.tile(corner, 2)
    return replace(found, boxes=boxes, keypoints=points, anchor_indices=None, cell_boxes=None, image_size=size)


def _cut(found: FoundObjects, window: Window, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which boxes end at a border of the window, within a hundredth of its size, that is not the image's."""
    x0, y0, x1, y1 = found.boxes.T
    near_x, near_y = max(window.width / 100, 1), max(window.height / 100, 1)
    height, width = size
    return np.asarray(
        ((x0 <= near_x) & (window.left > 0))
        | ((y0 <= near_y) & (window.top > 0))
        | ((x1 >= window.width - near_x) & (window.left + window.width < width))
        | ((y1 >= window.height - near_y) & (window.top + window.height < height))
    )
