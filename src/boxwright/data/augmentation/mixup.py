"""MixUp: two images blended."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from boxwright.data.augmentation.functional.compose import overlay
from boxwright.data.augmentation.functional.geometry import pad
from boxwright.data.augmentation.functional.pixels import as_float, like
from boxwright.data.augmentation.others import SampleProvider
from boxwright.types import Sample


@dataclass(frozen=True)
class MixUp:
    """Blend in another image, aligned at the upper left corners (Zhang et al., 2019, section 3.1).

    Neither image is resized: the result has the larger height and width. Objects of both stay, weighted by their
    image's share.

    Attributes:
        alpha: The image's share is drawn from Beta(alpha, alpha).
        min_weight: The least weight of an object.
    """

    others: SampleProvider
    probability: float = 0.5
    alpha: float = 1.5
    min_weight: float = 0.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the blend of two samples, or the sample unchanged."""
        if rng.random() >= self.probability:
            return sample
        share, other = float(rng.beta(self.alpha, self.alpha)), self.others(rng)
        height, width = np.maximum(sample.image.shape[:2], other.image.shape[:2])
        placed, blend = [], np.zeros((height, width, sample.image.shape[2]), np.float32)
        for one, part in ((sample, share), (other, 1 - share)):
            canvas = np.zeros(blend.shape, np.float32)
            weights = one.weights * np.float32(max(part, self.min_weight))
            weighted = replace(one, image=as_float(one.image), weights=weights)
            placed.append(pad(weighted, canvas, (0, 0)))
            blend += np.float32(part) * canvas
        whole = sample.image.dtype == other.image.dtype == np.uint8
        return overlay(like(sample.image, blend) if whole else blend, placed)
