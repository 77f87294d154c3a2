"""Flips and quarter turns.

Dimensions: N boxes, P keypoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from boxwright.data.augmentation.functional.geometry import mirror, quarter_turn
from boxwright.data.augmentation.functional.surface import SurfaceSymmetry
from boxwright.types import Sample


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirror left and right.

    Attributes:
        keypoint_permutation: The new index of each keypoint (left eye ↔ right eye); empty for none.
        symmetry: What a mirror makes of the body's surface, which samples with DensePose's points need.
    """

    probability: float = 0.5
    keypoint_permutation: Sequence[int] = ()
    symmetry: SurfaceSymmetry | None = None

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, mirrored or not."""
        if rng.random() >= self.probability:
            return sample
        return mirror(sample, 0, self.keypoint_permutation, self.symmetry)


@dataclass(frozen=True)
class RandomVerticalFlip:
    """Mirror up and down; attributes as for `RandomHorizontalFlip`."""

    probability: float = 0.5
    keypoint_permutation: Sequence[int] = ()
    symmetry: SurfaceSymmetry | None = None

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, mirrored or not."""
        if rng.random() >= self.probability:
            return sample
        return mirror(sample, 1, self.keypoint_permutation, self.symmetry)


@dataclass(frozen=True)
class RandomRotation90:
    """Rotate by 90° counterclockwise; `keypoint_permutation` as for `RandomHorizontalFlip`."""

    probability: float = 0.5
    keypoint_permutation: Sequence[int] = ()

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, rotated or not."""
        return quarter_turn(sample, self.keypoint_permutation) if rng.random() < self.probability else sample
