"""Synthetic images: colored shapes that overlap on textured backgrounds, with boxes and masks.

Small enough to learn in minutes, hard enough to tell whether a detector works: classes differ by outline alone, colors
and sizes vary, shapes occlude each other, textures distract. An image depends only on seed and index.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from boxwright.data.image_io import encode_jpeg
from boxwright.types import Categories, Category, Sample

SHAPES = ("circle", "square", "triangle", "star")
_OVERSAMPLE = 2
_LEAST_VISIBLE = 0.4

Points = list[tuple[float, float]]
_Drawing = tuple[NDArray[np.uint8], NDArray[np.bool_], tuple[int, ...]]


class ShapesDataset:
    """Any number of synthetic samples, computed on demand."""

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
        self.count, self.seed, self.size, self.max_objects = count, seed, size, max_objects
        self.radii = radii
        self.name = f"shapes({count}, seed {seed})"
        self.categories = Categories(tuple(Category(n, n + 1, name) for n, name in enumerate(SHAPES)))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        """Return one sample; boxes and masks cover the visible part of each shape.

        Shapes of which less than two fifths would be visible are not drawn.
        """
        image, masks, labels = self._drawing(index)
        return Sample(
            image=image.copy(),
            boxes=np.array([_box(mask) for mask in masks], np.float32).reshape(-1, 4),
            labels=np.array(labels, np.int64),
            areas=masks.sum((1, 2)).astype(np.float32),
            masks=masks.astype(np.uint8),
            id=f"{index:06d}",
            filename=_filename(index),
        )

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return a JPEG file's bytes and its name."""
        return encode_jpeg(self._drawing(index)[0]), _filename(index)

    def _drawing(self, index: int) -> _Drawing:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return _draw_image(self.seed, index, self.size, self.max_objects, self.radii)


def _filename(index: int) -> str:
    return f"shapes-{index:06d}.jpg"


@lru_cache(maxsize=1)  # writers of records ask for an image and then for its file
def _draw_image(seed: int, index: int, size: tuple[int, int], max_objects: int, radii: tuple[float, float]) -> _Drawing:
    """Return an image, masks [N, H, W] and labels, which must not be modified."""
    rng = np.random.default_rng([seed, index])
    image = textured_background(rng, size)
    # A count of 0 is drawn again as 0 or 1, which halves the number of empty images.
    wanted = int(rng.integers(0, max_objects + 1)) or int(rng.integers(0, 2))
    masks: list[NDArray[np.bool_]] = []
    whole: list[int] = []
    labels: list[int] = []
    for _ in range(wanted):
        label = int(rng.integers(len(SHAPES)))
        mask = _outline(rng, label, size, radii)
        seen = [other & ~mask for other in masks]
        too_hidden = any(s.sum() < _LEAST_VISIBLE * full for s, full in zip(seen, whole, strict=True))
        if too_hidden or mask.sum() < 16:
            continue
        paint(rng, image, mask)
        masks, whole, labels = [*seen, mask], [*whole, int(mask.sum())], [*labels, label]
    pixels = image.round().clip(0, 255).astype(np.uint8)
    return pixels, np.array(masks, np.bool_).reshape(-1, *size), tuple(labels)


def textured_background(rng: np.random.Generator, size: tuple[int, int]) -> NDArray[np.float32]:
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
    fine = np.asarray(canvas).astype(np.uint8)
    # A pixel belongs to the shape if two of its four quarters do.
    inside = fine[::2, ::2] + fine[::2, 1::2] + fine[1::2, ::2] + fine[1::2, 1::2]
    return np.asarray(inside >= _OVERSAMPLE)


def _points(shape: str, angle: float) -> NDArray[np.float64]:
    count, inner = {"circle": (48, 1.0), "square": (4, 1.0), "triangle": (3, 1.0), "star": (10, 0.42)}[shape]
    theta = angle + np.arange(count) * 2 * np.pi / count
    length = np.where(np.arange(count) % 2, inner, 1.0)
    return np.asarray(np.stack([np.cos(theta), np.sin(theta)], axis=1) * length[:, None])


def paint(rng: np.random.Generator, image: NDArray[np.float32], mask: NDArray[np.bool_]) -> None:
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
