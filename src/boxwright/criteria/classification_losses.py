"""Classification losses over anchors.

Each takes logits and targets of every class, and a weight for each anchor, and returns one loss
for each anchor: summing, mining and normalising are the criterion's business.

Dimensions: B batch, A anchors, C columns (classes, and background where there is one).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["ClassificationLoss", "SigmoidCrossEntropy", "SigmoidFocal", "SoftmaxCrossEntropy"]


class ClassificationLoss(Protocol):
    """A loss for each anchor."""

    def __call__(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Compute.

        Args:
            logits: float [B, A, C].
            targets: float [B, A, C] in 0..1; at most one column is 1 in a hard target.
            weights: float [B, A].

        Returns:
            float [B, A].
        """
        ...


@dataclass(frozen=True)
class SigmoidCrossEntropy:
    """Binary cross entropy of each column on its own, summed over columns."""

    def __call__(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Compute.

        Args:
            logits: float [B, A, C].
            targets: float [B, A, C].
            weights: float [B, A].

        Returns:
            float [B, A].
        """
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(-1) * weights


@dataclass(frozen=True)
class SigmoidFocal:
    """Focal loss: easy columns count less (Focal Loss for Dense Object Detection, equation 5).

    Attributes:
        gamma: How fast the weight of easy columns falls.
        alpha: The weight of positive columns, 1 - alpha that of negative ones; None weighs them alike.
    """

    gamma: float = 2.0
    alpha: float | None = 0.25

    def __call__(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Compute.

        Args:
            logits: float [B, A, C].
            targets: float [B, A, C].
            weights: float [B, A].

        Returns:
            float [B, A].
        """
        cross_entropy = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        probability = torch.sigmoid(logits)
        # 1 - p_t, written so that it takes no second pass over p.
        error = probability + targets - 2 * probability * targets
        loss = cross_entropy * (error * error if self.gamma == 2.0 else error**self.gamma)
        if self.alpha is not None:
            loss = loss * (1 - self.alpha + (2 * self.alpha - 1) * targets)
        return loss.sum(-1) * weights


@dataclass(frozen=True)
class SoftmaxCrossEntropy:
    """Cross entropy of all columns together.

    Attributes:
        logit_scale: Divides the logits.
    """

    logit_scale: float = 1.0

    def __call__(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Compute.

        Args:
            logits: float [B, A, C].
            targets: float [B, A, C]; rows that sum to 0 cost nothing.
            weights: float [B, A].

        Returns:
            float [B, A].
        """
        log_probabilities = F.log_softmax(logits / self.logit_scale, dim=-1)
        return -(log_probabilities * targets).sum(-1) * weights
