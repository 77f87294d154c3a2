"""The interface of transforms, and chains of them.

Augmentation that changes with the training step.

Other samples of the same data, for transforms that mix several.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from boxwright.base.errors import ConfigError
from boxwright.data.dataset import Dataset
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


@dataclass(frozen=True)
class Stages:
    """The transforms of each stage of a training.

    Attributes:
        first_steps: The training step with which each stage begins, rising; the first is 0.
    """

    first_steps: Sequence[int]
    chains: Sequence[Chain]

    def at(self, step: int) -> Chain:
        """Return the transforms of the samples of a step, counted from 0."""
        return self.chains[bisect_right(self.first_steps, step) - 1]

    def then(self, transforms: Sequence[Transform]) -> Stages:
        """Return the same stages with further transforms at the end of each."""
        return Stages(self.first_steps, [Chain((*chain.transforms, *transforms)) for chain in self.chains])


class SampleProvider(Protocol):
    """Draws samples."""

    def __call__(self, rng: np.random.Generator) -> Sample:
        """Return another sample."""
        ...


@dataclass(frozen=True)
class DrawnOthers:
    """Samples of a data set, drawn uniformly.

    Attributes:
        before: Applied to a sample before it is mixed.
    """

    dataset: Dataset
    before: Transform

    def __call__(self, rng: np.random.Generator) -> Sample:
        """Return a sample; a `DataError` if it cannot be read."""
        # Drawn from all, the same image included: to exclude it would need its index, which augmentation does not know.
        return self.before(self.dataset[int(rng.integers(0, len(self.dataset)))], rng)


@dataclass(frozen=True)
class NoSampleProvider:
    """The placeholder in chains that are built without data, for validation only."""

    def __call__(self, rng: np.random.Generator) -> Sample:
        """Raise a `ConfigError`."""
        del rng
        raise ConfigError("this chain was built without the data from which it draws other samples")
