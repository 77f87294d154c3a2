"""Random erasing: noise over part of each object."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from boxwright.data.augmentation.functional.compose import covered
from boxwright.types import Sample


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
