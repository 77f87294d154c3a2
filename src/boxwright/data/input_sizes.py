"""Inputs of another size in each batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from boxwright.data.batch import Resizer

# Separates these draws from those of order, augmentation and networks.
_SIZES = 0x73697A65


@dataclass(frozen=True)
class DrawnSizes:
    """A resizer for each training step, drawn by seed and step alone: every process and a resumed run draw the same.

    Attributes:
        own: The resizer of the steps before `from_step`, and from `until_step` on.
        drawn: What is drawn from between them, by their sizes, ascending; more probable ones are there several times.
        until_step: 0 for none.
    """

    own: Resizer
    drawn: Sequence[Resizer]
    seed: int
    from_step: int = 0
    until_step: int = 0

    def at(self, step: int) -> Resizer:
        """Return the resizer of all images of a step's batch, counted from 0."""
        if step < self.from_step or (self.until_step and step >= self.until_step):
            return self.own
        rng = np.random.default_rng([self.seed, step, _SIZES, 1])
        return self.drawn[int(rng.integers(len(self.drawn)))]

    @property
    def largest(self) -> Resizer:
        """The resizer of the largest inputs, which take the most memory."""
        return self.drawn[-1]
