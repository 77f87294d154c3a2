"""The image beside or below itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boxwright.data.augmentation.functional.compose import overlay
from boxwright.data.augmentation.functional.geometry import pad
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
                sample = _twice(sample, rows, columns)
        return sample


def _twice(sample: Sample, rows: int, columns: int) -> Sample:
    height, width = sample.image.shape[:2]
    canvas = np.zeros((rows * height, columns * width, sample.image.shape[2]), sample.image.dtype)
    first = pad(sample, canvas, (0, 0))
    second = pad(sample, canvas, ((columns - 1) * width, (rows - 1) * height))
    return overlay(canvas, (first, second))
