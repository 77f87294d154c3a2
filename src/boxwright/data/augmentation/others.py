"""Other samples of the same data, for transforms that mix several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from boxwright.base.errors import ConfigError
from boxwright.data.augmentation.transform import Transform
from boxwright.data.dataset import Dataset
from boxwright.types import Sample


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
