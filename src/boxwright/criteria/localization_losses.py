"""Localization losses over anchors.

Each takes box codes, their targets and a weight for each anchor, and returns one loss for each
anchor.

Dimensions: B batch, A anchors, S code size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F

__all__ = ["LocalizationLoss", "SmoothL1", "SquaredError"]


class LocalizationLoss(Protocol):
    """A loss for each anchor."""

    def __call__(self, codes: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Compute.

        Args:
            codes: float [B, A, S].
            targets: float [B, A, S].
            weights: float [B, A].

        Returns:
            float [B, A].
        """
        ...


@dataclass(frozen=True)
class SquaredError:
    """Half the squared weighted difference; the weight is squared with it, as in TensorFlow's."""

    def __call__(self, codes: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Compute.

        Args:
            codes: float [B, A, S].
            targets: float [B, A, S].
            weights: float [B, A].

        Returns:
            float [B, A].
        """
        difference = (codes - targets) * weights[..., None]
        return 0.5 * difference.square().sum(-1)


@dataclass(frozen=True)
class SmoothL1:
    """Huber's loss: quadratic up to `delta`, linear with slope `delta` beyond.

    Attributes:
        delta: Where the two parts meet.
    """

    delta: float = 1.0

    def __call__(self, codes: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Compute.

        Args:
            codes: float [B, A, S].
            targets: float [B, A, S].
            weights: float [B, A].

        Returns:
            float [B, A].
        """
        return F.huber_loss(codes, targets, reduction="none", delta=self.delta).sum(-1) * weights
