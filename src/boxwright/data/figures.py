"""Synthetic images of stick figures with joints, on the textured backgrounds of `shapes`.

Figures face the viewer, so their left is on the right of the image. An image depends only on seed and index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from boxwright.data.image_io import encode_jpeg
from boxwright.data.shapes import paint, textured_background
from boxwright.types import Categories, Category, Sample

JOINTS = ("head", "neck", "hip", "left_hand", "right_hand", "left_foot", "right_foot")
# The index of each joint's mirror image, and what the lines of a drawing connect.
FLIPPED_JOINTS = (0, 1, 2, 4, 3, 6, 5)
BONES = ((0, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6))
_OVERSAMPLE = 2
_LEAST_VISIBLE = 0.6
# These are lengths in heights of a figure.
_ARM, _LEG, _HEAD, _THICKNESS = 0.17, 0.22, 0.085, 0.06


@dataclass(frozen=True)
class _Figure:
    """A figure's joints [P, 2] and the knees and elbows [4, 2] between them, x and y in pixels; its mask [H, W]."""

    joints: NDArray[np.float64]
    bends: NDArray[np.float64]
    mask: NDArray[np.bool_]


_Drawing = tuple[NDArray[np.uint8], tuple[_Figure, ...], NDArray[np.bool_]]


class FiguresDataset:
    """Any number of synthetic samples, computed on demand."""

    def __init__(self, count: int, *, seed: int = 0, size: tuple[int, int] = (128, 128), max_objects: int = 3) -> None:
        """Describe the data set; `max_objects` is the maximum number of figures per image, of which some have none."""
        self.count, self.seed, self.size, self.max_objects = count, seed, size, max_objects
        self.name = f"figures({count}, seed {seed})"
        self.categories = Categories((Category(0, 1, "figure", keypoints=JOINTS),))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        """Return one sample; boxes cover the visible part of each figure, and hidden joints are invisible."""
        image, figures, visible = self._drawing(index)
        points = np.array([figure.joints for figure in figures]).reshape(-1, len(JOINTS), 2)
        boxes = np.array([_box(mask) for mask in _visible_masks(figures)], np.float32).reshape(-1, 4)
        return Sample(
            image=image.copy(),
            boxes=boxes,
            labels=np.zeros(len(boxes), np.int64),
            keypoints=np.concatenate([points, visible[..., None]], -1).astype(np.float32),
            id=f"{index:06d}",
            filename=_filename(index),
        )

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return a JPEG file's bytes and its name."""
        return encode_jpeg(self._drawing(index)[0]), _filename(index)

    def _drawing(self, index: int) -> _Drawing:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return _draw_image(self.seed, index, self.size, self.max_objects)


def _filename(index: int) -> str:
    return f"figures-{index:06d}.jpg"


@lru_cache(maxsize=1)  # writers of records ask for an image and then for its file
def _draw_image(seed: int, index: int, size: tuple[int, int], max_objects: int) -> _Drawing:
    """Return an image, its figures, back to front, and which joints are visible, bool [N, P]."""
    rng = np.random.default_rng([seed, index])
    image = textured_background(rng, size)
    figures: list[_Figure] = []
    for _ in range(int(rng.integers(0, max_objects + 1)) or int(rng.integers(0, 2))):
        figure = _pose_figure(rng, size)
        left = [(seen & ~figure.mask).sum() for seen in _visible_masks(figures)]
        if any(area < _LEAST_VISIBLE * whole.mask.sum() for area, whole in zip(left, figures, strict=True)):
            continue
        paint(rng, image, figure.mask)
        figures.append(figure)
    pixels = image.round().clip(0, 255).astype(np.uint8)
    visible = [_visible(figure, figures[number + 1 :]) for number, figure in enumerate(figures)]
    return pixels, tuple(figures), np.array(visible, np.bool_).reshape(-1, len(JOINTS))


def _pose_figure(rng: np.random.Generator, size: tuple[int, int]) -> _Figure:
    """Return a figure of random size, place, lean and pose; it may cross the border a little."""
    height, width = size
    tall = rng.uniform(0.35, 0.75) * min(size)
    neck, hip = np.array([0.0, -0.3]), np.array([0.0, 0.05])
    joints = [neck - [0, _HEAD * 1.4], neck, hip]
    bends = []
    for start, limb, (least, most) in ((neck, _ARM, (20, 160)), (hip, _LEG, (5, 55))):
        for side in (1, -1):
            first = np.radians(rng.uniform(least, most))
            second = first + np.radians(rng.uniform(-40, 40))
            bends.append(start + limb * np.array([side * np.sin(first), np.cos(first)]))
            joints.append(bends[-1] + limb * np.array([side * np.sin(second), np.cos(second)]))
    lean = np.radians(rng.uniform(-20, 20))
    turn = np.array([[np.cos(lean), np.sin(lean)], [-np.sin(lean), np.cos(lean)]])
    center = rng.uniform([0.2 * width, 0.35 * height], [0.8 * width, 0.65 * height])
    placed, between = (np.array(points) @ turn * tall + center for points in (joints, bends))
    return _Figure(placed, between, _mask(placed, between, tall, size))


def _mask(
    joints: NDArray[np.float64], bends: NDArray[np.float64], tall: float, size: tuple[int, int]
) -> NDArray[np.bool_]:
    height, width = size
    canvas = Image.new("1", (width * _OVERSAMPLE, height * _OVERSAMPLE))
    draw = ImageDraw.Draw(canvas)
    head, neck, hip, *ends = ((float(x), float(y)) for x, y in joints * _OVERSAMPLE)
    middles = [(float(x), float(y)) for x, y in bends * _OVERSAMPLE]
    thick, radius = max(round(_THICKNESS * tall * _OVERSAMPLE), 2), _HEAD * tall * _OVERSAMPLE
    lines = [[head, neck, hip]]
    lines += [[start, middle, end] for start, middle, end in zip((neck, neck, hip, hip), middles, ends, strict=True)]
    for line in lines:
        draw.line(line, fill=1, width=thick, joint="curve")
    draw.ellipse((head[0] - radius, head[1] - radius, head[0] + radius, head[1] + radius), fill=1)
    fine = np.asarray(canvas).astype(np.uint8)
    inside = fine[::2, ::2] + fine[::2, 1::2] + fine[1::2, ::2] + fine[1::2, 1::2]
    return np.asarray(inside >= _OVERSAMPLE)


def _visible_masks(figures: Sequence[_Figure]) -> list[NDArray[np.bool_]]:
    """Return the part of each figure that those in front of it leave visible."""
    seen: list[NDArray[np.bool_]] = []
    for figure in reversed(figures):
        hidden = [whole.mask for whole in figures[len(figures) - len(seen) :]]
        seen.append(figure.mask & ~np.any(hidden, axis=0) if hidden else figure.mask)
    return seen[::-1]


def _visible(figure: _Figure, in_front: list[_Figure]) -> NDArray[np.bool_]:
    """Return which joints lie in the image and behind no other figure."""
    height, width = figure.mask.shape
    inside = ((figure.joints >= 0) & (figure.joints < [width, height])).all(1)
    x, y = figure.joints.clip(0, [width - 1, height - 1]).astype(np.int64).T
    hidden = np.zeros(len(JOINTS), np.bool_)
    for other in in_front:
        hidden |= other.mask[y, x]
    return np.asarray(inside & ~hidden)


def _box(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    rows, columns = np.nonzero(mask.any(1))[0], np.nonzero(mask.any(0))[0]
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
