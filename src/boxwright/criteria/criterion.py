"""What every criterion offers: losses for training, and a description for the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from boxwright.types import Predictions, Targets

__all__ = ["Count", "Criterion", "Description", "count_here"]

Count = Callable[[Tensor], Tensor]


def count_here(matches: Tensor) -> Tensor:
    """Count the matched anchors of this batch alone.

    Args:
        matches: Their number, a scalar.

    Returns:
        The same.
    """
    return matches


@dataclass(frozen=True)
class Description:
    """What a log shows of a batch beside its losses.

    Attributes:
        scalars: Tag to a scalar tensor.
        distributions: Tag to the values [N] whose cumulative distribution is drawn; N may be 0.
    """

    scalars: dict[str, Tensor]
    distributions: dict[str, Tensor]


class Criterion(Protocol):
    """Compares predictions with groundtruth."""

    @property
    def divisors(self) -> int:
        """How often `count` is called: by how many numbers of matches losses are divided."""
        ...

    def __call__(self, predictions: Predictions, targets: Targets, count: Count = count_here) -> dict[str, Tensor]:
        """Compute the losses of a batch, or of a part of one.

        Args:
            predictions: What the network said.
            targets: The groundtruth, in pixels of the network's input.
            count: Turns the matches found here into those of the whole batch, by which losses are divided.

        Returns:
            Loss name to scalar; those of the parts of a batch add up to those of the batch.
        """
        ...

    def describe(self, predictions: Predictions, targets: Targets) -> Description:
        """Say how a batch was assigned and what it costs.

        Args:
            predictions: What the network said.
            targets: The groundtruth, in pixels of the network's input.

        Returns:
            What a log shows.
        """
        ...
