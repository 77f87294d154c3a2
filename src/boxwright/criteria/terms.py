"""Loss terms as values: what was summed, and by what it is divided."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# TF's names of the penalty on weights, and of the sum of all.
REGULARIZATION, TOTAL = "Loss/regularization_loss", "Loss/total_loss"


@dataclass(frozen=True)
class LossTerm:
    """One term of the loss of a batch, or of a part of one.

    Totals and counts of parts, and of processes, add up to those of the batch; then the one is divided by the other.

    Attributes:
        count: A scalar without gradient by which the total is divided, as at least 1, such as the number of matched
            anchors; None where it is not divided. Terms with the same divisor share the tensor.
    """

    total: Tensor
    count: Tensor | None = None

    @property
    def value(self) -> Tensor:
        """The term, where this batch is all there is; a scalar."""
        return self.total if self.count is None else self.total / self.count.clamp(min=1.0)

    @staticmethod
    def share_count(terms: dict[str, LossTerm]) -> bool:
        """Return whether there is one count, by which all terms are divided."""
        # The same tensor, not equal values: comparing those would wait for a GPU.
        counts = [term.count for term in terms.values()]
        return counts[0] is not None and all(count is counts[0] for count in counts)

    @staticmethod
    def values(terms: dict[str, LossTerm]) -> dict[str, Tensor]:
        """Return the value of each term, where this batch is all there is."""
        return {name: term.value for name, term in terms.items()}

    @staticmethod
    def sum(terms: dict[str, LossTerm]) -> Tensor:
        """Return the loss, where this batch is all there is."""
        return torch.stack(list(LossTerm.values(terms).values())).sum()
