"""Flips, quarter turns, and the image beside or below itself.

Dimensions: N boxes, P keypoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from boxwright.data.augmentation.functional.compose import overlay
from boxwright.data.augmentation.functional.geometry import mirror, pad, quarter_turn
from boxwright.data.dense_pose import SurfaceSymmetry
from boxwright.types import Sample


@dataclass(frozen=True)
class RandomSelfConcat:
    """Append a copy of the image below, then a copy of the result to the right, each at random.

    Attributes:
        horizontal: The probability of the copy to the right.
    """

    vertical: float = 0.1
    horizontal: float = 0.1

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample two or four times as large, or unchanged."""
        below, beside = rng.random() < self.vertical, rng.random() < self.horizontal
        for doubled, rows, columns in ((below, 2, 1), (beside, 1, 2)):
            if doubled:
                sample = _duplicate(sample, rows, columns)
        return sample


def _duplicate(sample: Sample, rows: int, columns: int) -> Sample:
    height, width = sample.image.shape[:2]
    canvas = np.zeros((rows * height, columns * width, sample.image.shape[2]), sample.image.dtype)
    first = pad(sample, canvas, (0, 0))
    second = pad(sample, canvas, ((columns - 1) * width, (rows - 1) * height))
    return overlay(canvas, (first, second))


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
    _axis: ClassVar[int] = 0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, mirrored or not."""
        if rng.random() >= self.probability:
            return sample
        return mirror(sample, self._axis, self.keypoint_permutation, self.symmetry)


@dataclass(frozen=True)
class RandomVerticalFlip(RandomHorizontalFlip):
    """Mirror up and down; attributes as for `RandomHorizontalFlip`."""

    _axis: ClassVar[int] = 1


@dataclass(frozen=True)
class RandomRotation90:
    """Rotate by 90° counterclockwise; `keypoint_permutation` as for `RandomHorizontalFlip`."""

    probability: float = 0.5
    keypoint_permutation: Sequence[int] = ()

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, rotated or not."""
        return quarter_turn(sample, self.keypoint_permutation) if rng.random() < self.probability else sample
