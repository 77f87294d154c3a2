"""Rotations, shears and shifts within the image's frame, by the nearest pixel, with TF's arithmetic.

TF's `ImageProjectiveTransform` maps each new pixel to its source; boxes follow AutoAugment's own rule, which rounds
corners to whole pixels and never leaves a box empty.

Dimensions: N boxes, C channels.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.data.augmentation.functional.geometry import hide_outside
from boxwright.types import Sample

FILL = 128
# The share of the image that TF's `_check_bbox_area` gives to a box that became empty.
_LEAST_SIDE = np.float32(0.05)
# OpenCV has colors of so many channels.
_MOST_CHANNELS = 4
Array = NDArray[Any]
# Rows (a, b, c) and (d, e, f): the new pixel (x, y) is the old one at (ax + by + c, dx + ey + f).
Affine = NDArray[np.float32]


def rotation(degrees: float, height: int, width: int) -> Affine:
    """Return the rotation about the image's center.

    Each operation rounds to float32, as in TF: at 30° and odd sides many pixels lie halfway between two others.
    """
    radians = np.float32(degrees) * np.float32(math.pi / 180)
    cos, sin = np.cos(radians), np.sin(radians)
    right, below, half = np.float32(width - 1), np.float32(height - 1), np.float32(2)
    x = (right - (cos * right - sin * below)) / half
    y = (below - (sin * right + cos * below)) / half
    return np.array([[cos, -sin, x], [sin, cos, y]], np.float32)


def shear_x(level: float) -> Affine:
    """Return the shear along x."""
    return np.array([[1, level, 0], [0, 1, 0]], np.float32)


def shear_y(level: float) -> Affine:
    """Return the shear along y."""
    return np.array([[1, 0, 0], [level, 1, 0]], np.float32)


def translation(x: float, y: float) -> Affine:
    """Return the shift to the left and up, in pixels."""
    return np.array([[1, 0, x], [0, 1, y]], np.float32)


def scaled_rotation(degrees: float, scale: float, shift: tuple[float, float], height: int, width: int) -> Affine:
    """Return the rotation and scaling about the image's center, with a shift after them.

    Args:
        degrees: Clockwise for positive angles.
        shift: Of x and y, in pixels, to the right and down.
    """
    radians = math.radians(degrees)
    cos, sin = math.cos(radians) / scale, math.sin(radians) / scale
    # Indices of pixels are half a pixel less than their centers.
    x, y = (width - 1) / 2, (height - 1) / 2
    right, down = x + shift[0], y + shift[1]
    return np.array([[cos, sin, x - cos * right - sin * down], [-sin, cos, y + sin * right - cos * down]], np.float32)


def move_affine(sample: Sample, where: Affine, color: tuple[float, ...]) -> Sample:
    """Return a sample resampled at other positions, with `color` outside; objects of less than a pixel are dropped.

    Boxes are those around the moved corners, clipped to the image.
    """
    height, width = sample.image.shape[:2]
    inverse = np.linalg.inv(np.vstack([where, [0, 0, 1]]).astype(np.float64))[:2]
    corners = sample.boxes[:, [[0, 1], [2, 1], [0, 3], [2, 3]]]
    placed = (corners - 0.5) @ inverse[:, :2].T + inverse[:, 2] + 0.5
    around = np.concatenate([placed.min(1), placed.max(1)], 1)
    boxes = np.clip(around, 0, np.array([width, height] * 2)).astype(np.float32)
    moved = _moved(sample, where, boxes, color)
    visible = (boxes[:, 2:] - boxes[:, :2]).prod(1) / np.clip((around[:, 2:] - around[:, :2]).prod(1), 1e-6, None)
    areas = sample.areas * visible * abs(np.linalg.det(inverse[:, :2]))
    seen = np.asarray((boxes[:, 2:] - boxes[:, :2] >= 1).all(1))
    return replace(moved, areas=areas.astype(np.float32)).keep(seen)


def warp(image: Array, where: Affine, fill: int | tuple[float, ...]) -> Array:
    """Return an image [H, W, C] resampled at other positions; `fill` outside its border."""
    height, width, channels = image.shape
    x, y = np.arange(width, dtype=np.float32)[None], np.arange(height, dtype=np.float32)[:, None]
    # OpenCV looks pixels up by whole coordinates, in a tenth of NumPy's time; all beyond the border are alike.
    sources = np.empty((height, width, 2), np.int16)
    for axis, ((a, b, c), side) in enumerate(zip(where, (width, height), strict=True)):
        sources[..., axis] = np.clip(_half_away(a * x + b * y + c), -1, side)
    colors = np.broadcast_to(np.asarray(fill).astype(image.dtype), channels)
    resampled = np.empty(image.shape, image.dtype)
    no_second_map: Any = None
    for first in range(0, channels, _MOST_CHANNELS):
        some = slice(first, first + _MOST_CHANNELS)
        resampled[..., some] = cv2.remap(
            np.ascontiguousarray(image[..., some]),
            sources,
            no_second_map,
            cv2.INTER_NEAREST,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=colors[some].tolist(),
        ).reshape(height, width, -1)
    return resampled


def _half_away(places: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round halves away from zero, as C++ does."""
    return np.asarray(np.trunc(places + np.copysign(np.float32(0.5), places)))


def rotate(sample: Sample, degrees: float) -> Sample:
    """Return a sample rotated about its center, clockwise for positive angles."""
    height, width = sample.image.shape[:2]
    cos, sin = (np.float32(f(math.radians(degrees))) for f in (math.cos, math.sin))
    y, x = (_from_center(sample.boxes[:, axis::2], side) for axis, side in ((1, height), (0, width)))
    y = -y
    ys, xs = y[:, [0, 0, 1, 1]], x[:, [0, 1, 0, 1]]
    turned_y, turned_x = np.trunc(cos * ys + sin * xs), np.trunc(-sin * ys + cos * xs)
    tops = -(turned_y.max(1) / np.float32(height) - np.float32(0.5))
    bottoms = -(turned_y.min(1) / np.float32(height) - np.float32(0.5))
    lefts, rights = (edge / np.float32(width) + np.float32(0.5) for edge in (turned_x.min(1), turned_x.max(1)))
    boxes = _nonempty(np.stack([lefts, tops, rights, bottoms], 1), height, width)
    return _moved(sample, rotation(degrees, height, width), boxes)


def _from_center(edges: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """Return distances from the center in pixels, truncated, [N, 2]."""
    return np.asarray(np.trunc(np.float32(side) * (edges / np.float32(side) - np.float32(0.5))), np.float32)


def shear(sample: Sample, level: float, axis: int) -> Sample:
    """Return a sample sheared along x (axis 0) or y (axis 1)."""
    height, width = sample.image.shape[:2]
    corners = np.trunc(sample.boxes)
    xs, ys = corners[:, [0, 2, 0, 2]], corners[:, [1, 1, 3, 3]]
    lean = np.float32(level)
    if axis == 0:
        xs = np.trunc(xs - lean * ys)
    else:
        ys = np.trunc(ys - lean * xs)
    sheared = np.stack([xs.min(1), ys.min(1), xs.max(1), ys.max(1)], 1)
    boxes = _nonempty(sheared / np.array([width, height] * 2, np.float32), height, width)
    return _moved(sample, shear_x(level) if axis == 0 else shear_y(level), boxes)


def shift(sample: Sample, pixels: float, axis: int) -> Sample:
    """Return a sample shifted to the left (axis 0) or up (axis 1)."""
    height, width = sample.image.shape[:2]
    boxes = np.trunc(sample.boxes)
    boxes[:, axis] = np.maximum(0, boxes[:, axis] - int(pixels))
    # TF shifts the image by the fraction too, boxes by whole pixels.
    boxes[:, axis + 2] = np.minimum((width, height)[axis], boxes[:, axis + 2] - int(pixels))
    sound = _nonempty(boxes / np.array([width, height] * 2, np.float32), height, width)
    return _moved(sample, translation(pixels, 0) if axis == 0 else translation(0, pixels), sound)


def _nonempty(boxes: Array, height: int, width: int) -> NDArray[np.float32]:
    """Return boxes in units of the image as pixels, clipped, with a minimum side if clipping emptied them."""
    clipped = np.clip(boxes, 0, 1)
    for axis in (0, 1):
        empty = clipped[:, axis] == clipped[:, axis + 2]
        clipped[empty, axis + 2] = np.maximum(clipped[empty, axis + 2], _LEAST_SIDE)
        clipped[empty, axis] = np.minimum(clipped[empty, axis], 1 - _LEAST_SIDE)
    return np.asarray(clipped * np.array([width, height] * 2, np.float32), np.float32)


def _moved(sample: Sample, where: Affine, boxes: NDArray[np.float32], fill: int | tuple[float, ...] = FILL) -> Sample:
    """Move image, masks and keypoints (TF does not move the last two)."""
    height, width = sample.image.shape[:2]
    inverse = np.linalg.inv(np.vstack([where, [0, 0, 1]]))[:2]

    def points(old: Array) -> Array:
        # `where` maps pixel indices; the center of a pixel is half a pixel further.
        placed = (old[..., :2] - 0.5) @ inverse[:, :2].T + inverse[:, 2] + 0.5
        return hide_outside(np.concatenate([placed, old[..., 2:]], -1), height, width)

    def masks(old: Array) -> Array:
        return np.moveaxis(warp(np.moveaxis(old, 0, -1), where, 0), -1, 0)

    moved = sample.moved(
        warp(sample.image, where, fill),
        points=points,
        vectors=lambda old: (old @ inverse[:, :2].T).astype(np.float32),
        masks=masks,
    )
    before, after = (np.clip(b[:, 2:] - b[:, :2], 1e-6, None).prod(1) for b in (sample.boxes, boxes))
    return replace(moved, boxes=boxes, areas=np.minimum(moved.areas, moved.areas * after / before).astype(np.float32))
