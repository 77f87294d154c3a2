"""Pixel corruption: black patches, noise, compression, erasing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from boxwright.data.augmentation.functional.compose import covered
from boxwright.data.augmentation.functional.pixels import LARGEST, as_float, as_levels, like
from boxwright.data.image_io import recompress_jpeg
from boxwright.types import Sample


@dataclass(frozen=True)
class RandomBlackPatches:
    """Blacken random squares.

    Attributes:
        side: Side of a square, in units of the shorter side of the image.
    """

    tries: int = 10
    probability: float = 0.5
    side: float = 0.1

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        image = sample.image.copy()
        height, width = image.shape[:2]
        # TF truncates the product in float32: in float64 some sides would be a pixel longer or shorter.
        side = int(np.float32(min(height, width)) * np.float32(self.side))
        for _ in range(self.tries):
            if rng.random() > self.probability:
                continue
            y, x = (int(np.float32(rng.uniform(0, 1 - self.side)) * np.float32(size)) for size in (height, width))
            image[y : y + side, x : x + side] = 0
        return replace(sample, image=image)


@dataclass(frozen=True)
class RandomPatchGaussian:
    """Add noise to a square of the image (Lopes et al., 2019, "Patch Gaussian").

    Attributes:
        sides: (min, max) side of the square in pixels, max excluded.
        deviations: (min, max) standard deviation, in units of the full range.
        keep_probability: The probability that the image stays unchanged.
    """

    sides: tuple[int, int] = (1, 250)
    deviations: tuple[float, float] = (0.0, 1.0)
    keep_probability: float = 0.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample, or the same."""
        if rng.random() <= self.keep_probability:
            return sample
        height, width = sample.image.shape[:2]
        side = int(rng.integers(*self.sides))
        deviation = rng.uniform(*self.deviations)
        y, x = int(rng.integers(0, height)) - side // 2, int(rng.integers(0, width)) - side // 2
        noise = rng.normal(0, deviation, sample.image.shape).astype(np.float32) * LARGEST
        window = np.s_[max(y, 0) : max(y + side, 0), max(x, 0) : max(x + side, 0)]
        image = sample.image.copy()
        image[window] = like(image, as_float(image[window]) + noise[window])
        return replace(sample, image=image)


@dataclass(frozen=True)
class RandomJpegQuality:
    """Compress the image as JPEG, and decompress it.

    Attributes:
        qualities: (min, max) in 0..100, max excluded.
        keep_probability: The probability that the image stays unchanged.
    """

    qualities: tuple[int, int] = (0, 100)
    keep_probability: float = 0.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample, or the same."""
        if rng.random() <= self.keep_probability:
            return sample
        quality = int(rng.integers(*self.qualities))
        return replace(sample, image=recompress_jpeg(as_levels(sample.image), quality))


@dataclass(frozen=True)
class RandomErasing:
    """Fill a rectangle in each object with noise, at random (Zhong et al., 2020, section 3.3, "object-aware").

    A rectangle that is longer than the box is clipped to it; the paper draws again until one fits. Boxes and masks
    stay: the object is still there, only occluded.

    Attributes:
        areas: (min, max) area, as a share of the box's.
        min_aspect_ratio: Minimum height over width; the maximum is its inverse.
    """

    probability: float = 0.5
    areas: tuple[float, float] = (0.02, 0.2)
    min_aspect_ratio: float = 0.3

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample with noise in some objects."""
        height, width = sample.image.shape[:2]
        boxes = np.clip(sample.boxes, 0, [width, height, width, height]).astype(np.float64)
        chosen = boxes[rng.random(len(boxes)) < self.probability]
        if not len(chosen):
            return sample
        sides = np.maximum(chosen[:, 2:] - chosen[:, :2], 0)
        areas = sides.prod(1) * rng.uniform(*self.areas, len(chosen))
        ratios = rng.uniform(self.min_aspect_ratio, 1 / self.min_aspect_ratio, len(chosen))
        erased = np.minimum(np.stack([np.sqrt(areas / ratios), np.sqrt(areas * ratios)], 1), sides)
        corners = chosen[:, :2] + rng.random((len(chosen), 2)) * (sides - erased)
        hidden = covered(np.concatenate([corners, corners + erased], 1), height, width)
        image = sample.image.copy()
        image[hidden] = rng.integers(0, 256, (int(hidden.sum()), image.shape[2]))
        return replace(sample, image=image)
