"""Changes of colour. Pixels stay uint8 between transforms (TF keeps floats: half a level's difference)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import functional as F

from boxwright.types import Sample

__all__ = ["DistortColor", "RandomBrightness", "RandomContrast", "RandomHue", "RandomSaturation"]


# What depends on a pixel's own level alone is looked up: a tenth of the time of the arithmetic.
_LEVELS = np.arange(256, dtype=np.float32)


def _rounded(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class RandomBrightness:
    """Add the same amount to every pixel.

    Attributes:
        max_delta: The most, in shares of the full range.
    """

    max_delta: float = 0.2

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Adjust.

        Args:
            sample: The sample.
            rng: The source of all randomness.

        Returns:
            A new sample.
        """
        delta = np.float32(rng.uniform(-self.max_delta, self.max_delta) * 255)
        return replace(sample, image=_rounded(_LEVELS + delta)[sample.image])


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
        """Adjust.

        Args:
            sample: The sample.
            rng: The source of all randomness.

        Returns:
            A new sample.
        """
        factor = np.float32(rng.uniform(self.low, self.high))
        image = np.empty_like(sample.image)
        for channel in range(image.shape[2]):
            pixels = sample.image[..., channel]
            mean = np.float32(pixels.mean())
            image[..., channel] = _rounded((_LEVELS - mean) * factor + mean)[pixels]
        return replace(sample, image=image)


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
        """Adjust.

        Args:
            sample: The sample.
            rng: The source of all randomness.

        Returns:
            A new sample.
        """
        factor = np.float32(rng.uniform(self.low, self.high))
        value = sample.image.max(-1, keepdims=True).astype(np.float32)
        chroma = value - sample.image.min(-1, keepdims=True)
        # Saturation is chroma over value and ends at 1; the value itself stays.
        limit = np.divide(value, chroma, out=np.full_like(value, np.inf), where=chroma > 0)
        return replace(sample, image=_rounded(value - (value - sample.image) * np.minimum(factor, limit)))


@dataclass(frozen=True)
class RandomHue:
    """Turn the hue of HSV.

    Attributes:
        max_delta: The most, in shares of the full circle.
    """

    max_delta: float = 0.02

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Adjust.

        Args:
            sample: The sample.
            rng: The source of all randomness.

        Returns:
            A new sample.
        """
        delta = float(rng.uniform(-self.max_delta, self.max_delta))
        pixels = F.adjust_hue(torch.from_numpy(sample.image).permute(2, 0, 1), delta)
        return replace(sample, image=np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))


@dataclass(frozen=True)
class DistortColor:
    """Brightness, saturation, hue and contrast, in one of two orders (TF's `random_distort_color`).

    Attributes:
        ordering: 0 for brightness, saturation, hue, contrast; 1 for brightness, contrast, saturation, hue.
    """

    ordering: int = 0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Adjust.

        Args:
            sample: The sample.
            rng: The source of all randomness.

        Returns:
            A new sample.
        """
        brightness, saturation = RandomBrightness(32 / 255), RandomSaturation(0.5, 1.5)
        hue, contrast = RandomHue(0.2), RandomContrast(0.5, 1.5)
        orders = ((brightness, saturation, hue, contrast), (brightness, contrast, saturation, hue))
        for transform in orders[self.ordering]:
            sample = transform(sample, rng)
        return sample
