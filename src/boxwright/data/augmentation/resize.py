"""Random changes of size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from boxwright.data.augmentation.crop import crop, touching
from boxwright.data.augmentation.functional.geometry import Resize, pad, resize
from boxwright.nn.ops.resize import resize_area, resize_bicubic, resize_bilinear, resize_nearest
from boxwright.types import Sample

# In the order of TF's `ResizeMethod`.
_METHODS: tuple[Resize, ...] = (resize_bilinear, resize_nearest, resize_bicubic, resize_area)


@dataclass(frozen=True)
class ResizeTo:
    """Resize the image to (height, width), ignoring its aspect ratio."""

    size: tuple[int, int]
    method: Resize = resize_bilinear

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        del rng
        return resize(sample, *self.size, self.method)


@dataclass(frozen=True)
class RandomResizeMethod:
    """Resize the image to (height, width) by bilinear, nearest, bicubic or area interpolation."""

    size: tuple[int, int]

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        return resize(sample, *self.size, _METHODS[int(rng.integers(0, len(_METHODS)))])


@dataclass(frozen=True)
class RandomScale:
    """Resize by a random factor between (min, max) (TF's `random_image_scale`)."""

    factors: tuple[float, float] = (0.5, 2.0)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        factor = np.float32(rng.uniform(*self.factors))
        height, width = (max(int(np.float32(side) * factor), 1) for side in sample.image.shape[:2])
        # TF's function asks for aligned corners here, unlike in its resizers.
        return resize(sample, height, width, align_corners=True)


@dataclass(frozen=True)
class RandomDownscale:
    """Shrink the image to a random number of pixels if it has more.

    Attributes:
        keep_probability: The probability that the image stays unchanged.
    """

    pixels: tuple[int, int] = (300_000, 800_000)
    keep_probability: float = 0.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, smaller or unchanged."""
        kept, target = rng.random() <= self.keep_probability, int(rng.integers(*self.pixels))
        height, width = sample.image.shape[:2]
        if kept or height * width <= target:
            return sample
        factor = math.sqrt(target / (height * width))
        return resize(sample, max(int(height * factor), 1), max(int(width * factor), 1))


@dataclass(frozen=True)
class RandomScaleCropPad:
    """Scale at random, then crop to a square at random if larger, and pad if smaller (EfficientDet, section 5.1).

    Attributes:
        side: Of the square, in pixels.
        scales: (min, max) of the longer side, in units of the square's.
    """

    side: int = 512
    scales: tuple[float, float] = (0.1, 2.0)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a sample of that size; boxes are clipped, those entirely outside are dropped."""
        height, width = sample.image.shape[:2]
        scale, longest = np.float32(rng.uniform(*self.scales)) * np.float32(self.side), np.float32(max(height, width))
        tall, wide = (max(int(scale * (np.float32(side) / longest)), 1) for side in (height, width))
        y, x = (int(np.float32(max(size - self.side, 0)) * np.float32(rng.random())) for size in (tall, wide))
        scaled = resize(sample, tall, wide, masks_method=resize_bilinear)
        window = (x, y, min(x + self.side, wide), min(y + self.side, tall))
        inside = crop(scaled, window, touching(scaled.boxes, window), clip_boxes=True)
        canvas = np.zeros((self.side, self.side, sample.image.shape[2]), inside.image.dtype)
        return pad(inside, canvas, (0, 0))
