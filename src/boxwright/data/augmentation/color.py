"""Color transforms of pixels, [H, W, C], uint8 or float32 in 0..255; computed in real numbers, as by TF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np

from boxwright.base.errors import DataError
from boxwright.data.augmentation.functional.pixels import (
    GRAY_WEIGHTS,
    LARGEST,
    Pixels,
    as_float,
    by_level,
    like,
    shift_levels,
)
from boxwright.types import Sample

_COLORS = 3


@dataclass(frozen=True)
class RandomBrightness:
    """Add the same random amount, at most `max_delta` of the full range, to every pixel."""

    max_delta: float = 0.2

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        delta = rng.uniform(-self.max_delta, self.max_delta) * 255
        return replace(sample, image=shift_levels(sample.image, delta))


@dataclass(frozen=True)
class RandomContrast:
    """Scale each channel about its mean by a random factor."""

    low: float = 0.8
    high: float = 1.25

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        factor = np.float32(rng.uniform(self.low, self.high))
        image = np.empty_like(sample.image)
        # Each channel has its own mean, and so its own table of levels.
        for channel in range(image.shape[2]):
            image[..., channel] = _stretch(sample.image[..., channel], factor)
        return replace(sample, image=image)


def _stretch(levels: Pixels, factor: np.float32) -> Pixels:
    mean = np.float32(levels.mean())
    return by_level(levels, lambda level: (level - mean) * factor + mean)


@dataclass(frozen=True)
class RandomSaturation:
    """Multiply the saturation of HSV by a random factor."""

    low: float = 0.8
    high: float = 1.25

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample, or the same."""
        factor, image = np.float32(rng.uniform(self.low, self.high)), sample.image
        if image.shape[2] < _COLORS:
            return sample
        # By planes: NumPy takes several times as long where the last axis is short.
        red, green, blue = (np.ascontiguousarray(as_float(image[..., color])) for color in range(_COLORS))
        value = np.maximum(np.maximum(red, green), blue)
        chroma = value - np.minimum(np.minimum(red, green), blue)
        # Saturation is chroma over value, at most 1; the value itself stays.
        limit = np.divide(value, chroma, out=np.full_like(value, np.inf), where=chroma > 0)
        scale = np.minimum(factor, limit)
        saturated = [like(image, value - (value - plane) * scale) for plane in (red, green, blue)]
        return replace(sample, image=_with_colors(image, np.asarray(cv2.merge(saturated))))


@dataclass(frozen=True)
class RandomHue:
    """Rotate the hue of HSV by at most `max_delta` of the full circle."""

    max_delta: float = 0.02

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample, or the same."""
        turn, image = rng.uniform(-self.max_delta, self.max_delta) % 1, sample.image
        if image.shape[2] < _COLORS:
            return sample
        hsv: Any = cv2.cvtColor(np.ascontiguousarray(as_float(image[..., :_COLORS])), cv2.COLOR_RGB2HSV)
        hsv[..., 0] += np.float32(turn * 360)  # OpenCV's hues begin again at 360
        turned: Any = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
        return replace(sample, image=_with_colors(image, like(image, turned)))


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
        return replace(sample, image=_gray(sample.image))


@dataclass(frozen=True)
class RandomGray:
    """Convert the image to gray with a probability."""

    probability: float = 0.1

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample, or the same."""
        return replace(sample, image=_gray(sample.image)) if rng.random() < self.probability else sample


@dataclass(frozen=True)
class RandomPixelScale:
    """Multiply each value of each pixel by its own random factor."""

    low: float = 0.9
    high: float = 1.1

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        factors = rng.uniform(self.low, self.high, sample.image.shape).astype(np.float32)
        return replace(sample, image=like(sample.image, sample.image * factors))


@dataclass(frozen=True)
class AdjustGamma:
    """Apply gamma correction with a fixed exponent; `gain` multiplies the result."""

    gamma: float = 1.0
    gain: float = 1.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        del rng
        gamma, gain = np.float32(self.gamma), self.gain
        return replace(sample, image=by_level(sample.image, lambda level: gain * (level / LARGEST) ** gamma * LARGEST))


@dataclass(frozen=True)
class MapRange:
    """Map levels linearly so that range `source` becomes `target` (TF's `normalize_image`)."""

    source: tuple[float, float]
    target: tuple[float, float]

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample, whose pixels are float32."""
        del rng
        (low, high), (new_low, new_high) = self.source, self.target
        scale = np.float32((new_high - new_low) / (high - low))
        return replace(sample, image=(as_float(sample.image) - np.float32(low)) * scale + np.float32(new_low))


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
        return replace(sample, image=as_float(sample.image) - np.asarray(self.means, np.float32))


def _gray(image: Pixels) -> Pixels:
    """Return an image whose colors are its luminance; other channels, as of alpha or of a gray image, stay."""
    if image.shape[2] < _COLORS:
        return image
    luminance = as_float(image[..., :_COLORS]) @ GRAY_WEIGHTS
    return _with_colors(image, np.repeat(like(image, luminance)[..., None], _COLORS, axis=-1))


def _with_colors(image: Pixels, colors: Pixels) -> Pixels:
    """Replace the colors of an image, which may have further channels."""
    return colors if image.shape[2] == _COLORS else np.concatenate([colors, image[..., _COLORS:]], axis=-1)
