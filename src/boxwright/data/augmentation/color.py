"""Changes of color."""

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
        # Rounded after each, levels would end up to three from TF's.
        changed = replace(sample, image=as_float(sample.image))
        for transform in orders[self.ordering]:
            changed = transform(changed, rng)
        return replace(changed, image=like(sample.image, changed.image))


@dataclass(frozen=True)
class Gray:
    """Make the image gray; it keeps three channels."""

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        del rng
        return replace(sample, image=gray(sample.image))


@dataclass(frozen=True)
class RandomGray:
    """Make the image gray, sometimes.

    Attributes:
        probability: How often.
    """

    probability: float = 0.1

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample, or the same."""
        return replace(sample, image=gray(sample.image)) if rng.random() < self.probability else sample


@dataclass(frozen=True)
class RandomPixelScale:
    """Multiply each value of each pixel with a factor of its own.

    Attributes:
        low: The least factor.
        high: The largest factor.
    """

    low: float = 0.9
    high: float = 1.1

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        factors = rng.uniform(self.low, self.high, sample.image.shape).astype(np.float32)
        return replace(sample, image=multiply_pixels(sample.image, factors))


@dataclass(frozen=True)
class AdjustGamma:
    """Correct the gamma of every image alike.

    Attributes:
        gamma: The exponent.
        gain: What the result is multiplied with.
    """

    gamma: float = 1.0
    gain: float = 1.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        del rng
        return replace(sample, image=adjust_gamma(sample.image, self.gamma, self.gain))


@dataclass(frozen=True)
class MapRange:
    """Map levels from one range to another (TF's `normalize_image`).

    Attributes:
        source: (least, most) that becomes
        target: (least, most).
    """

    source: tuple[float, float]
    target: tuple[float, float]

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample, whose pixels are float32."""
        del rng
        return replace(sample, image=map_range(sample.image, self.source, self.target))


@dataclass(frozen=True)
class SubtractChannelMean:
    """Subtract a number from each channel.

    Attributes:
        means: One a channel.
    """

    means: Sequence[float]

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Subtract.

        Returns:
            A new sample, whose pixels are float32.

        Raises:
            DataError: Where the image has another number of channels.
        """
        del rng
        if sample.image.shape[2] != len(self.means):
            raise DataError(
                f"{sample.id}: {len(self.means)} channel means for an image of {sample.image.shape[2]} channels"
            )
        return replace(sample, image=subtract_channels(sample.image, self.means))
