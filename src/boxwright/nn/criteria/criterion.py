"""The interface of criteria: losses for training, and a description for the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from boxwright.nn.criteria.terms import LossTerm
from boxwright.types import Targets

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
