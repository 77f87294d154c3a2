"""The interface of transforms, and chains of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from boxwright.types import Sample


class Transform(Protocol):
    """Changes a sample at random."""

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample, or the same one; the sample itself is never modified."""
        ...


@dataclass(frozen=True)
class Chain:
    """Several transforms in sequence."""

    transforms: Sequence[Transform] = ()

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the transformed sample."""
        for transform in self.transforms:
            sample = transform(sample, rng)
        return sample

    def at(self, step: int) -> Chain:
        """Return itself: it is the same at every training step."""
        del step
        return self


@dataclass(frozen=True)
class OneOf:
    """One of several transforms, drawn uniformly."""

    transforms: Sequence[Transform]

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the transformed sample."""
        return self.transforms[int(rng.integers(0, len(self.transforms)))](sample, rng)
