"""Loss terms as values: what was summed, and by what it is divided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# TF's names of the penalty on weights, and of the sum of all.
REGULARIZATION, TOTAL = "Loss/regularization_loss", "Loss/total_loss"


def at_least_one(count: Tensor) -> Tensor:
    """Return a count as a divisor: as in TF, of a batch without matches nothing is divided by 0."""
    return count.clamp(min=1.0)


@dataclass(frozen=True)
class LossTerm:
    """One term of the loss of a batch, or of a part of one.

    Totals and counts of parts, and of processes, add up to those of the batch; then the one is divided by the other.

    Attributes:
        count: A scalar without gradient by which the total is divided, as at least 1, such as the number of matched
            anchors; or [n], from which `divisor` makes that scalar; None where it is not divided. Terms with the same
            divisor share the tensor.
        divisor: From the count of the whole batch to what the total is divided by.
    """

    total: Tensor
    count: Tensor | None = None
    divisor: Callable[[Tensor], Tensor] = at_least_one

    @property
    def value(self) -> Tensor:
        """The term, where this batch is all there is; a scalar."""
        return self.total if self.count is None else self.total / self.divisor(self.count)

    @staticmethod
    def share_count(terms: dict[str, LossTerm]) -> bool:
        """Return whether there is one count, by which all terms are divided."""
        # The same tensor, not equal values: comparing those would wait for a GPU.
        first = next(iter(terms.values())).count
        return first is not None and all(
            term.count is first and term.divisor is at_least_one for term in terms.values()
        )

    @staticmethod
    def values(terms: dict[str, LossTerm]) -> dict[str, Tensor]:
        """Return the value of each term, where this batch is all there is."""
        return {name: term.value for name, term in terms.items()}

    @staticmethod
    def sum(terms: dict[str, LossTerm]) -> Tensor:
        """Return the loss, where this batch is all there is."""
        return torch.stack(list(LossTerm.values(terms).values())).sum()
