"""Synthetic images: colored shapes with boxes and masks, and stick figures with joints, on textured backgrounds.

Small enough to learn in minutes, hard enough to tell whether a detector works: classes differ by outline alone, colors
and sizes vary, shapes occlude each other, textures distract. An image depends only on seed and index. Figures face the
viewer, so their left is on the right of the image.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from boxwright.data.image_io import encode_jpeg
from boxwright.types import Categories, Category, Sample

SHAPES = ("circle", "square", "triangle", "star")
_OVERSAMPLE = 2
_LEAST_SHAPE_VISIBLE = 0.4

_ShapesDrawing = tuple[NDArray[np.uint8], NDArray[np.bool_], tuple[int, ...]]


class _DrawnDataset(ABC):
    """Any number of synthetic samples, computed on demand."""

    categories: Categories

    def __init__(self, what: str, count: int, seed: int, size: tuple[int, int], max_objects: int) -> None:
        self.what, self.count, self.seed, self.size, self.max_objects = what, count, seed, size, max_objects
        self.name = f"{what}({count}, seed {seed})"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        """Return one sample; boxes, masks and keypoints are of what is visible."""
        return self._sample(index)

    def _sample(self, index: int) -> Sample:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return replace(self._draw(index), id=f"{index:06d}", filename=f"{self.what}-{index:06d}.jpg")

    @abstractmethod
    def _draw(self, index: int) -> Sample:
        """Return a sample without its names."""

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return a JPEG file's bytes and its name."""
        sample = self._sample(index)
        return encode_jpeg(sample.image), sample.filename


class ShapesDataset(_DrawnDataset):
    """Samples with boxes and masks of shapes, each of which is visible by two fifths at least."""

    def __init__(
        self,
        count: int,
        *,
        seed: int = 0,
        size: tuple[int, int] = (160, 160),
        max_objects: int = 6,
        radii: tuple[float, float] = (0.055, 0.24),
    ) -> None:
        """Describe the data set.

        Args:
            max_objects: The maximum number of shapes per image; about one image in fifteen has none.
            radii: The minimum and maximum radius of a shape, in units of the image's shorter side.
        """
        super().__init__("shapes", count, seed, size, max_objects)
        self.radii = radii
        self.categories = Categories(tuple(Category(n, n + 1, name) for n, name in enumerate(SHAPES)))

    def _draw(self, index: int) -> Sample:
        image, masks, labels = _draw_shapes(self.seed, index, self.size, self.max_objects, self.radii)
        return Sample(
            image=image.copy(),
            boxes=np.array([_box(mask) for mask in masks], np.float32).reshape(-1, 4),
            labels=np.array(labels, np.int64),
            areas=masks.sum((1, 2)).astype(np.float32),
            masks=masks.astype(np.uint8),
        )


@lru_cache(maxsize=1)  # writers of records ask for an image and then for its file
def _draw_shapes(
    seed: int, index: int, size: tuple[int, int], max_objects: int, radii: tuple[float, float]
) -> _ShapesDrawing:
    """Return an image, masks [N, H, W] and labels, which must not be modified."""
    rng = np.random.default_rng([seed, index])
    image = _textured_background(rng, size)
    # A count of 0 is drawn again as 0 or 1, which halves the number of empty images.
    wanted = int(rng.integers(0, max_objects + 1)) or int(rng.integers(0, 2))
    masks: list[NDArray[np.bool_]] = []
    whole: list[int] = []
    labels: list[int] = []
    for _ in range(wanted):
        label = int(rng.integers(len(SHAPES)))
        mask = _outline(rng, label, size, radii)
        seen = [other & ~mask for other in masks]
        too_hidden = any(s.sum() < _LEAST_SHAPE_VISIBLE * full for s, full in zip(seen, whole, strict=True))
        if too_hidden or mask.sum() < 16:
            continue
        _paint(rng, image, mask)
        masks, whole, labels = [*seen, mask], [*whole, int(mask.sum())], [*labels, label]
    pixels = image.round().clip(0, 255).astype(np.uint8)
    return pixels, np.array(masks, np.bool_).reshape(-1, *size), tuple(labels)


def _textured_background(rng: np.random.Generator, size: tuple[int, int]) -> NDArray[np.float32]:
    """Blend two colors by a smooth random field, add stripes and grain."""
    height, width = size
    coarse = rng.random((int(rng.integers(3, 9)), int(rng.integers(3, 9)))).astype(np.float32)
    field = np.asarray(Image.fromarray(coarse, mode="F").resize((width, height), Image.Resampling.BICUBIC))
    first, second = rng.uniform(30, 225, (2, 3))
    angle, wavelength = rng.uniform(0, np.pi), rng.uniform(6, 40)
    y, x = np.mgrid[:height, :width]
    stripes = np.sin((x * np.cos(angle) + y * np.sin(angle)) / wavelength * 2 * np.pi) * rng.uniform(0, 18)
    image = first + (second - first) * field[..., None] + stripes[..., None]
    grain = rng.normal(0, rng.uniform(2, 10), (height, width, 1))
    return np.asarray(image + grain, np.float32)


def _outline(
    rng: np.random.Generator, label: int, size: tuple[int, int], radii: tuple[float, float]
) -> NDArray[np.bool_]:
    """Return the mask of one shape at random place and rotation; it may cross the border."""
    height, width = size
    # Uniform in the logarithm: small shapes are as frequent as large ones.
    radius = float(np.exp(rng.uniform(np.log(radii[0]), np.log(radii[1])))) * min(size)
    center = rng.uniform(0.3 * radius, [width - 0.3 * radius, height - 0.3 * radius])
    angle, stretch = rng.uniform(0, 2 * np.pi), rng.uniform(0.8, 1.25)
    points = _points(SHAPES[label], angle) * radius * np.array([stretch, 1 / stretch]) + center
    canvas = Image.new("1", (width * _OVERSAMPLE, height * _OVERSAMPLE))
    ImageDraw.Draw(canvas).polygon([(float(x), float(y)) for x, y in points * _OVERSAMPLE], fill=1)
    return _covered_pixels(canvas)


def _covered_pixels(canvas: Image.Image) -> NDArray[np.bool_]:
    """Return the mask of what is drawn on a canvas of twice the size: two of a pixel's four quarters count as it."""
    fine = np.asarray(canvas).astype(np.uint8)
    quarters = fine[::2, ::2] + fine[::2, 1::2] + fine[1::2, ::2] + fine[1::2, 1::2]
    return np.asarray(quarters >= _OVERSAMPLE)


def _points(shape: str, angle: float) -> NDArray[np.float64]:
    count, inner = {"circle": (48, 1.0), "square": (4, 1.0), "triangle": (3, 1.0), "star": (10, 0.42)}[shape]
    theta = angle + np.arange(count) * 2 * np.pi / count
    length = np.where(np.arange(count) % 2, inner, 1.0)
    return np.asarray(np.stack([np.cos(theta), np.sin(theta)], axis=1) * length[:, None])


def _paint(rng: np.random.Generator, image: NDArray[np.float32], mask: NDArray[np.bool_]) -> None:
    """Fill a mask with a shaded color that differs from what is beneath it."""
    beneath = image[mask].mean(0)
    color = rng.uniform(0, 255, 3)
    # Some channel differs by 60 of 255 levels, or the shape might be invisible.
    while np.abs(color - beneath).max() < 60:
        color = rng.uniform(0, 255, 3)
    y, x = np.nonzero(mask)
    shade = rng.uniform(-0.6, 0.6, 2) @ np.stack([x - x.mean(), y - y.mean()])
    image[mask] = color + shade[:, None] + rng.normal(0, 4, (len(x), 1))


def _box(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    rows, columns = np.nonzero(mask.any(1))[0], np.nonzero(mask.any(0))[0]
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


JOINTS = ("head", "neck", "hip", "left_hand", "right_hand", "left_foot", "right_foot")
_LEAST_FIGURE_VISIBLE = 0.6
# These are lengths in heights of a figure.
_ARM, _LEG, _HEAD, _THICKNESS = 0.17, 0.22, 0.085, 0.06


@dataclass(frozen=True)
class _Figure:
    """A figure's joints [P, 2] and the knees and elbows [4, 2] between them, x and y in pixels; its mask [H, W]."""

    joints: NDArray[np.float64]
    bends: NDArray[np.float64]
    mask: NDArray[np.bool_]


_FiguresDrawing = tuple[NDArray[np.uint8], tuple[_Figure, ...], NDArray[np.bool_]]


class FiguresDataset(_DrawnDataset):
    """Samples with boxes and keypoints of figures; a hidden joint is invisible."""

    def __init__(self, count: int, *, seed: int = 0, size: tuple[int, int] = (128, 128), max_objects: int = 3) -> None:
        """Describe the data set; `max_objects` is the maximum number of figures per image, of which some have none."""
        super().__init__("figures", count, seed, size, max_objects)
        self.categories = Categories((Category(0, 1, "figure", keypoints=JOINTS),))

    def _draw(self, index: int) -> Sample:
        image, figures, visible = _draw_figures(self.seed, index, self.size, self.max_objects)
        points = np.array([figure.joints for figure in figures]).reshape(-1, len(JOINTS), 2)
        boxes = np.array([_box(mask) for mask in _visible_masks(figures)], np.float32).reshape(-1, 4)
        return Sample(
            image=image.copy(),
            boxes=boxes,
            labels=np.zeros(len(boxes), np.int64),
            keypoints=np.concatenate([points, visible[..., None]], -1).astype(np.float32),
        )


@lru_cache(maxsize=1)  # writers of records ask for an image and then for its file
def _draw_figures(seed: int, index: int, size: tuple[int, int], max_objects: int) -> _FiguresDrawing:
    """Return an image, its figures, back to front, and which joints are visible, bool [N, P]."""
    rng = np.random.default_rng([seed, index])
    image = _textured_background(rng, size)
    figures: list[_Figure] = []
    for _ in range(int(rng.integers(0, max_objects + 1)) or int(rng.integers(0, 2))):
        figure = _pose_figure(rng, size)
        left = [(seen & ~figure.mask).sum() for seen in _visible_masks(figures)]
        if any(area < _LEAST_FIGURE_VISIBLE * whole.mask.sum() for area, whole in zip(left, figures, strict=True)):
            continue
        _paint(rng, image, figure.mask)
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
    return _covered_pixels(canvas)


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
