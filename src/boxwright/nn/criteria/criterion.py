"""The interface of criteria: losses for training, and a description for the log.

A loss term is a value: what was summed, and by what it is divided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from boxwright.types import Targets

# TF's names of the penalty on weights, and of the sum of all.
REGULARIZATION, TOTAL = "Loss/regularization_loss", "Loss/total_loss"


@dataclass(frozen=True)
class LossTerm:
    """One term of the loss of a batch, or of a part of one.

    Totals and counts of parts, and of processes, add up to those of the batch; then the one is divided by the other.

    Attributes:
        count: A scalar without gradient by which the total is divided, as at least 1, such as the number of matched
            anchors; or [n], from which `divisor` makes that scalar; None where it is not divided. Terms with the same
            divisor share the tensor.
        divisor: From the count of the whole batch to what the total is divided by; None for the count, at least 1.
            (A compiled step cannot return a function as a default.)
    """

    total: Tensor
    count: Tensor | None = None
    divisor: Callable[[Tensor], Tensor] | None = None

    @property
    def value(self) -> Tensor:
        """The term, where this batch is all there is; a scalar."""
        return self.total if self.count is None else self.total / self.divided_by(self.count)

    def divided_by(self, count: Tensor) -> Tensor:
        """Return what the total is divided by: as in TF, nothing is divided by the 0 of a batch without matches."""
        return count.clamp(min=1.0) if self.divisor is None else self.divisor(count)

    @staticmethod
    def share_count(terms: dict[str, LossTerm]) -> bool:
        """Return whether there is one count, by which all terms are divided."""
        # The same tensor, not equal values: comparing those would wait for a GPU.
        first = next(iter(terms.values())).count
        return first is not None and all(term.count is first and term.divisor is None for term in terms.values())

    @staticmethod
    def values(terms: dict[str, LossTerm]) -> dict[str, Tensor]:
        """Return the value of each term, where this batch is all there is."""
        return {name: term.value for name, term in terms.items()}

    @staticmethod
    def sum(terms: dict[str, LossTerm]) -> Tensor:
        """Return the loss, where this batch is all there is."""
        return torch.stack(list(LossTerm.values(terms).values())).sum()


P = TypeVar("P", contravariant=True)


@dataclass(frozen=True)
class Description:
    """What a log shows about a batch in addition to its losses.

    Attributes:
        distributions: Tag to values [N] plotted as a cumulative distribution; N may be 0.
    """

    scalars: dict[str, Tensor]
    distributions: dict[str, Tensor]


class Criterion(Protocol[P]):
    """Compares the predictions of one family of detectors with groundtruth."""

    def __call__(self, predictions: P, targets: Targets) -> dict[str, LossTerm]:
        """Return the terms of the loss of a batch, or of a part of one.

        Args:
            targets: The groundtruth, in pixels of the network's input.
        """
        ...

    def describe(self, predictions: P, targets: Targets) -> Description:
        """Return a description of a batch's assignment and losses for the log.

        Args:
            targets: The groundtruth, in pixels of the network's input.
        """
        ...
