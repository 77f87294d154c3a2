"""Color transforms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from boxwright.base.errors import DataError
from boxwright.data.augmentation.functional.color import (
    adjust_gamma,
    brighten,
    gray,
    map_range,
    multiply_pixels,
    saturate,
    stretch,
    subtract_channels,
    turn_hue,
)
from boxwright.data.augmentation.functional.pixels import as_float, like
from boxwright.types import Sample


@dataclass(frozen=True)
class RandomBrightness:
    """Add the same random amount, at most `max_delta` of the full range, to every pixel."""

    max_delta: float = 0.2

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        delta = rng.uniform(-self.max_delta, self.max_delta) * 255
        return replace(sample, image=brighten(sample.image, delta))


@dataclass(frozen=True)
class RandomContrast:
    """Scale each channel about its mean by a random factor."""

    low: float = 0.8
    high: float = 1.25

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        return replace(sample, image=stretch(sample.image, rng.uniform(self.low, self.high)))


@dataclass(frozen=True)
class RandomSaturation:
    """Multiply the saturation of HSV by a random factor."""

    low: float = 0.8
    high: float = 1.25

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        return replace(sample, image=saturate(sample.image, rng.uniform(self.low, self.high)))


@dataclass(frozen=True)
class RandomHue:
    """Rotate the hue of HSV by at most `max_delta` of the full circle."""

    max_delta: float = 0.02

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        return replace(sample, image=turn_hue(sample.image, rng.uniform(-self.max_delta, self.max_delta)))


@dataclass(frozen=True)
class DistortColor:
    """Change brightness, saturation, hue and contrast, in one of two orders (TF's `random_distort_color`).

    Attributes:
        ordering: 0 for brightness, saturation, hue, contrast; 1 for brightness, contrast, saturation, hue.
    """

    ordering: int = 0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        # TF's constants; its message has no fields for them.
        brightness, saturation = RandomBrightness(32 / 255), RandomSaturation(0.5, 1.5)
        hue, contrast = RandomHue(0.2), RandomContrast(0.5, 1.5)
        orders = ((brightness, saturation, hue, contrast), (brightness, contrast, saturation, hue))
        # With rounding after each step, levels would differ from TF's by up to three.
        changed = replace(sample, image=as_float(sample.image))
        for transform in orders[self.ordering]:
            changed = transform(changed, rng)
        return replace(changed, image=like(sample.image, changed.image))


@dataclass(frozen=True)
class Gray:
    """Convert the image to gray with three channels."""

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        del rng
        return replace(sample, image=gray(sample.image))


@dataclass(frozen=True)
class RandomGray:
    """Convert the image to gray with a probability."""

    probability: float = 0.1

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample, or the same."""
        return replace(sample, image=gray(sample.image)) if rng.random() < self.probability else sample


@dataclass(frozen=True)
class RandomPixelScale:
    """Multiply each value of each pixel by its own random factor."""

    low: float = 0.9
    high: float = 1.1

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        factors = rng.uniform(self.low, self.high, sample.image.shape).astype(np.float32)
        return replace(sample, image=multiply_pixels(sample.image, factors))


@dataclass(frozen=True)
class AdjustGamma:
    """Apply gamma correction with a fixed exponent; `gain` multiplies the result."""

    gamma: float = 1.0
    gain: float = 1.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        del rng
        return replace(sample, image=adjust_gamma(sample.image, self.gamma, self.gain))


@dataclass(frozen=True)
class MapRange:
    """Map levels linearly so that range `source` becomes `target` (TF's `normalize_image`)."""

    source: tuple[float, float]
    target: tuple[float, float]

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample, whose pixels are float32."""
        del rng
        return replace(sample, image=map_range(sample.image, self.source, self.target))


@dataclass(frozen=True)
class SubtractChannelMean:
    """Subtract one mean from each channel."""

    means: Sequence[float]

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample, whose pixels are float32.

        Raises:
            DataError: If the image has another number of channels.
        """
        del rng
        if sample.image.shape[2] != len(self.means):
            raise DataError(
                f"{sample.id}: {len(self.means)} channel means for an image of {sample.image.shape[2]} channels"
            )
        return replace(sample, image=subtract_channels(sample.image, self.means))
