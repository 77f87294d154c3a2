"""COCO masks: polygons, run lengths as lists, and compressed run lengths.

pycocotools draws polygons and packs masks in C code that trusts its input. So limits are checked here first, and run
lengths are unpacked here, where their sum is known before memory is allocated.
"""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from boxwright.base.errors import DataError
from boxwright.base.limits import COORDINATE, MASK_BOUNDARY, MASK_PIXELS
from boxwright.data.reading import finite_number, whole_number


def decode_mask(segmentation: Any, size: tuple[int, int], where: str) -> NDArray[np.uint8]:
    """Return the mask of a segmentation, uint8 [H, W] of 0 and 1.

    Args:
        segmentation: A list of polygons, or `{"size": [h, w], "counts": …}`.
        size: (height, width) of the image, which run lengths must match.

    Raises:
        DataError: If it is neither, has another size, or exceeds a limit.
    """
    if isinstance(segmentation, list):
        return _draw(segmentation, size, where)
    if not isinstance(segmentation, dict) or "counts" not in segmentation:
        raise DataError(f"{where}: segmentation: expected polygons, or an object with size and counts")
    stated = segmentation.get("size")
    if not isinstance(stated, list) or len(stated) != 2:
        raise DataError(f"{where}: segmentation: expected size [height, width], found {str(stated)[:60]}")
    height, width = (whole_number(side, f"{where}: segmentation: size") for side in stated)
    if (height, width) != size:
        raise DataError(f"{where}: segmentation: the mask is {height}×{width}, the image {size[0]}×{size[1]}")
    return _fill(_runs(segmentation["counts"], f"{where}: segmentation: counts"), size, where)


def _draw(polygons: list[Any], size: tuple[int, int], where: str) -> NDArray[np.uint8]:
    where = f"{where}: segmentation"
    boundary = 0.0
    for number, polygon in enumerate(polygons):
        # pycocotools would read a list of four numbers as a box.
        if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
            raise DataError(f"{where}: polygon {number}: expected [x, y, x, y, …] of at least three points")
        points = [finite_number(value, f"{where}: polygon {number}") for value in polygon]
        if problem := COORDINATE.exceeded(max(map(abs, points))):
            raise DataError(f"{where}: polygon {number}: {problem}")
        corners = list(zip(points[0::2], points[1::2], strict=True))
        # pycocotools walks the outline at five times the resolution: its memory follows the length, not the image.
        boundary += sum(map(math.dist, corners, [*corners[1:], corners[0]]))
    if not polygons:
        raise DataError(f"{where}: no polygon")
    if problem := MASK_BOUNDARY.exceeded(round(boundary)):
        raise DataError(f"{where}: {problem}")
    codes = coco_mask.merge(coco_mask.frPyObjects(polygons, *size))
    return np.asarray(cv2.transpose(coco_mask.decode(codes).T), np.uint8)  # pycocotools returns column-major masks


def _runs(counts: Any, where: str) -> list[int]:
    if isinstance(counts, list):
        return [whole_number(count, where) for count in counts]
    if isinstance(counts, str):
        return _unpacked(counts, where)
    raise DataError(f"{where}: expected a list of numbers or text, found {type(counts).__name__}")


def _unpacked(text: str, where: str) -> list[int]:
    """Unpack run lengths: five bits a character, lowest first; from the fourth run on, deltas from two runs before."""
    runs: list[int] = []
    value = shift = 0
    for character in text:
        code = ord(character) - 48
        # A number has at most 13 characters (65 bits), however long the text is.
        if not 0 <= code < 64 or shift > 60:
            raise DataError(f"{where}: not COCO's compressed run lengths")
        value |= (code & 31) << shift
        shift += 5
        if code & 32:
            continue
        if code & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    if shift:
        raise DataError(f"{where}: cut off in the middle of a number")
    return runs


def _fill(runs: list[int], size: tuple[int, int], where: str) -> NDArray[np.uint8]:
    """Fill columns with alternating runs of 0 and 1."""
    if min(runs, default=0) < 0 or sum(runs) != size[0] * size[1]:
        raise DataError(f"{where}: segmentation: its run lengths do not fill an image of {size[0]}×{size[1]}")
    flat = np.repeat((np.arange(len(runs)) % 2).astype(np.uint8), runs)
    return np.asarray(cv2.transpose(flat.reshape(size[::-1])), np.uint8).reshape(size)


def check_mask_memory(count: int, size: tuple[int, int], where: str) -> None:
    """Raise a `DataError` if the masks of an image would take more memory than the limit allows."""
    if problem := MASK_PIXELS.exceeded(count * size[0] * size[1]):
        raise DataError(f"{where}: {count} masks of {size[0]}×{size[1]}: {problem}")
