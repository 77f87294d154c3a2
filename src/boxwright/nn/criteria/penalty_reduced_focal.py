"""Focal loss for targets that fall off around objects, its values and gradients computed in one pass over the logits.

A heatmap has a column per class in each cell: each step of the formula on all of it costs more than its arithmetic.

Dimensions: B batch, A anchors (cells), C columns.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from boxwright.nn.criteria.class_index_losses import negative_focal, rows_in_cache


def penalty_reduced_focal_loss(
    logits: Tensor, targets: Tensor, weights: Tensor, *, alpha: float, beta: float, clip: float
) -> Tensor:
    """Return the loss of each anchor, summed over its columns, float [B, A] (CornerNet, equation 1).

    With p = sigmoid(logit), clipped, a column costs -(1 - p)^alpha log(p) if its target is exactly 1, else
    -(1 - target)^beta p^alpha log(1 - p).

    Args:
        logits: float [B, A, C].
        targets: float [B, A, C] in 0..1.
        weights: float [B, A, 1] or [B, A, C].
        alpha: How fast the weight of easy columns falls.
        beta: How fast the cost of negatives falls near objects.
        clip: The margin by which probabilities are clipped from 0 and 1.
    """
    of_anchors = weights.shape[-1] == 1
    of_columns = None if of_anchors else weights
    loss: Tensor = _PenaltyReducedFocal.apply(logits, targets, of_columns, alpha, beta, math.log((1 - clip) / clip))
    return loss * weights.squeeze(-1) if of_anchors else loss


class _PenaltyReducedFocal(torch.autograd.Function):
    """The loss summed over columns, with the gradient computed in the same pass; `limit` clips the logits."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, weights: Tensor | None, alpha: float, beta: float, limit: float
    ) -> Tensor:
        columns = logits.shape[-1]
        rows, wanted = logits.reshape(-1, columns), targets.reshape(-1, columns)
        own = None if weights is None else weights.reshape(-1, columns)
        losses = rows.new_empty(len(rows))
        slopes = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        size = rows_in_cache(len(rows), columns, logits.device)
        for begin in range(0, len(rows), size):
            part = slice(begin, begin + size)
            x = rows[part].clamp(-limit, limit)
            positive = wanted[part] == 1
            # A positive column has the loss of a negative one with logit -x, and no penalty.
            weight = _power(1 - wanted[part], beta).masked_fill_(positive, 1.0)
            if own is not None:
                weight.mul_(own[part])
            values, slope = negative_focal(torch.where(positive, -x, x), alpha, gradient=slopes is not None)
            losses[part] = values.mul_(weight).sum(1)
            if slopes is not None and slope is not None:
                # As through a clamp: none where the logit was clipped.
                weight.masked_fill_(x != rows[part], 0.0)
                torch.mul(slope, torch.where(positive, -weight, weight), out=slopes[part])
        ctx.save_for_backward(slopes)
        return losses.view(logits.shape[:-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (slopes,) = ctx.saved_tensors
        found = (slopes * gradient.reshape(-1, 1)).view(*gradient.shape, slopes.shape[1])
        return found, None, None, None, None, None


def _power(base: Tensor, exponent: float) -> Tensor:
    """Return a power, in place; PyTorch's own takes ten times as long for the usual 4."""
    return base.square_().square_() if exponent == 4 else base.pow_(exponent)
