"""Localization losses over anchors.

Each takes box codes, their targets and a weight per anchor, and returns one loss per anchor.

Dimensions: B batch, A anchors, S code size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.nn.ops.boxes import compute_overlaps


class LocalizationLoss:
    """A loss for each anchor.

    Attributes:
        of_boxes: Whether boxes (xyxy) rather than codes are compared.
    """

    of_boxes: ClassVar[bool] = False

    def __call__(self, codes: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted losses.

        Args:
            codes: float [B, A, S], or boxes [B, A, 4].
            targets: float, the same shape.
            weights: float [B, A].

        Returns:
            float [B, A].
        """
        raise NotImplementedError


@dataclass(frozen=True)
class SquaredError(LocalizationLoss):
    """Half the squared weighted difference; the weight is squared too, as in TensorFlow."""

    def __call__(self, codes: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return float [B, A]."""
        difference = (codes - targets) * weights[..., None]
        return 0.5 * difference.square().sum(-1)


@dataclass(frozen=True)
class AbsoluteError(LocalizationLoss):
    """The sum of absolute differences."""

    def __call__(self, codes: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return float [B, A]."""
        return (codes - targets).abs().sum(-1) * weights


@dataclass(frozen=True)
class SmoothL1(LocalizationLoss):
    """Huber's loss: quadratic up to `delta`, linear with slope `delta` beyond."""

    delta: float = 1.0

    def __call__(self, codes: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return float [B, A]."""
        # `F.smooth_l1_loss` is this divided by delta: its slope far from the target is 1, and TF's is delta.
        return F.huber_loss(codes, targets, reduction="none", delta=self.delta).sum(-1) * weights


@dataclass(frozen=True)
class IouLoss(LocalizationLoss):
    """One minus intersection over union; 1 for disjoint boxes."""

    of_boxes = True

    def __call__(self, codes: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return float [...]."""
        intersection, union, _ = compute_overlaps(codes, targets)
        # The inner `where` keeps 0 / 0 out of the backward pass, where the outer one alone would leave NaN.
        iou = torch.where(intersection > 0, intersection / torch.where(intersection > 0, union, 1.0), 0.0)
        return (1 - iou) * weights


@dataclass(frozen=True)
class GeneralizedIouLoss(LocalizationLoss):
    """One minus generalized intersection over union (Rezatofighi et al., 2019, algorithm 1)."""

    of_boxes = True

    def __call__(self, codes: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return float [...]; in 0..2 for valid boxes, times the weight."""
        intersection, union, hull = compute_overlaps(codes, targets)
        iou = torch.where(union == 0, 0.0, intersection / torch.where(union == 0, 1.0, union))
        # TF's rule for two empty boxes: the penalty is 0.
        outside = torch.where(hull > 0, (hull - union) / torch.where(hull > 0, hull, 1.0), iou)
        return (1 - (iou - outside)) * weights
