"""A transform that a user wrote as one of ours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boxwright.base.errors import DataError
from boxwright.data.augmentation.global_random import seeded
from boxwright.data.augmentation.transform import Transform
from boxwright.types import Sample


@dataclass(frozen=True)
class OwnTransform:
    """Apply a user's transform, whatever generator it draws from.

    Attributes:
        transform: The user's.
    """

    transform: Transform

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return what it returned; a `DataError` where that is no sample."""
        with seeded(rng):
            found = self.transform(sample, rng)
        if not isinstance(found, Sample):
            raise DataError(f"user_augmentation: the transform returned {type(found).__name__}; expected a Sample")
        return found
