"""Augmentation that changes with the training step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from boxwright.data.augmentation.transform import Chain, Transform


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
