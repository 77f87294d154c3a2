"""Adapter for a transform that a user wrote."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boxwright.base.errors import DataError
from boxwright.data.augmentation.global_random import seeded
from boxwright.data.augmentation.transform import Transform
from boxwright.types import Sample


@dataclass(frozen=True)
class OwnTransform:
    """Apply a user's transform, with the global generators seeded."""

    transform: Transform

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return its result; a `DataError` if that is not a sample."""
        with seeded(rng):
            found = self.transform(sample, rng)
        if not isinstance(found, Sample):
            raise DataError(f"user_augmentation: the transform returned {type(found).__name__}; expected a Sample")
        return found
