"""Changes of colour. Pixels stay uint8 between transforms (TF keeps floats: half a level's difference)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from boxwright.data.augmentation.functional.color import brighten, saturate, stretch, turn_hue
from boxwright.types import Sample

__all__ = ["DistortColor", "RandomBrightness", "RandomContrast", "RandomHue", "RandomSaturation"]


@dataclass(frozen=True)
class RandomBrightness:
    """Add the same amount to every pixel.

    Attributes:
        max_delta: The most, in shares of the full range.
    """

    max_delta: float = 0.2

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        delta = rng.uniform(-self.max_delta, self.max_delta) * 255
        return replace(sample, image=brighten(sample.image, delta))


@dataclass(frozen=True)
class RandomContrast:
    """Stretch each channel about its mean.

    Attributes:
        low: The least factor.
        high: The largest factor.
    """

    low: float = 0.8
    high: float = 1.25

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        return replace(sample, image=stretch(sample.image, rng.uniform(self.low, self.high)))


@dataclass(frozen=True)
class RandomSaturation:
    """Multiply the saturation of HSV.

    Attributes:
        low: The least factor.
        high: The largest factor.
    """

    low: float = 0.8
    high: float = 1.25

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        return replace(sample, image=saturate(sample.image, rng.uniform(self.low, self.high)))


@dataclass(frozen=True)
class RandomHue:
    """Turn the hue of HSV.

    Attributes:
        max_delta: The most, in shares of the full circle.
    """

    max_delta: float = 0.02

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        return replace(sample, image=turn_hue(sample.image, rng.uniform(-self.max_delta, self.max_delta)))


@dataclass(frozen=True)
class DistortColor:
    """Brightness, saturation, hue and contrast, in one of two orders (TF's `random_distort_color`).

    Attributes:
        ordering: 0 for brightness, saturation, hue, contrast; 1 for brightness, contrast, saturation, hue.
    """

    ordering: int = 0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        brightness, saturation = RandomBrightness(32 / 255), RandomSaturation(0.5, 1.5)
        hue, contrast = RandomHue(0.2), RandomContrast(0.5, 1.5)
        orders = ((brightness, saturation, hue, contrast), (brightness, contrast, saturation, hue))
        for transform in orders[self.ordering]:
            sample = transform(sample, rng)
        return sample
