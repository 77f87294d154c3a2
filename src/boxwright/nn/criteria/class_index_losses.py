"""Losses with class-index targets, whose values and gradients are computed in one pass over the logits.

Dense targets would take as much memory as the logits, and each step of a formula another pass over both. A target is
the index of the column that is 1, or `NO_COLUMN` for a row of zeros.

Dimensions: B batch, A anchors, C columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from boxwright.nn.ops.boxes import rows_at_once

NO_COLUMN = -1
# The chunk size that stays in a core's cache through all steps of the formula.
_IN_CACHE = 1 << 17


def as_rows(classes: Tensor, count: int) -> Tensor:
    """Return targets int64 [B, A] as rows float [B, A, C]; rows are returned unchanged."""
    if classes.ndim == 3:
        return classes
    known = (classes != NO_COLUMN)[..., None]
    return torch.zeros(*classes.shape, count, device=classes.device).scatter_(
        -1, classes.clamp(min=0)[..., None], known.float()
    )


def as_columns(classes: Tensor) -> Tensor:
    """Return the argmax column int64 [B, A] of targets int64 [B, A] or float [B, A, C]; 0 for zeros."""
    return classes.argmax(-1) if classes.ndim == 3 else classes.clamp(min=0)


def sigmoid_focal_loss(logits: Tensor, classes: Tensor, gamma: float, alpha: float | None) -> Tensor:
    """Return the focal loss of each anchor, summed over its columns; with gamma 0 and no alpha, binary cross entropy.

    Args:
        logits: float [B, A, C].
        classes: int64 [B, A]; the positive column, or NO_COLUMN.
        gamma: How fast the weight of easy columns falls.
        alpha: The weight of positive columns, 1 - alpha that of negative ones; None weights both by 1.

    Returns:
        float [B, A].
    """
    weights = (1.0, 1.0) if alpha is None else (1 - alpha, alpha)
    loss: Tensor = _SigmoidFocal.apply(logits.contiguous(), classes, gamma, *weights)
    return loss


def softmax_loss(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the cross entropy of each anchor; 0 for NO_COLUMN.

    Args:
        logits: float [B, A, C].
        classes: int64 [B, A]; the target column, or NO_COLUMN.

    Returns:
        float [B, A].
    """
    loss: Tensor = _Softmax.apply(logits, classes)
    return loss


def rows_in_cache(rows: int, columns: int, device: torch.device) -> int:
    """Return how many rows of logits to compute at a time, through all steps of a formula; all if they fit on a GPU."""
    if device.type == "cpu" and not torch.compiler.is_compiling():
        # PyTorch spreads each operation over all threads, so every core has its share of a chunk in its own cache.
        return max(_IN_CACHE * torch.get_num_threads() // columns, 1)
    return rows_at_once(rows, columns, device)


def negative_focal(x: Tensor, gamma: float, *, gradient: bool) -> tuple[Tensor, Tensor | None]:
    """Return the loss of a negative column and, if requested, its derivative by the logit.

    With s = sigmoid(x) and c = softplus(x) = -log(1 - s):

        value     s^gamma c
        gradient  s^gamma (s + gamma (1 - s) c)

    A positive column has the loss of a negative one with logit -x.
    """
    s, c = torch.sigmoid(x), F.softplus(x)
    if gamma == 0:
        return c, s if gradient else None
    power = s * s if gamma == 2 else s**gamma
    slope = torch.sub(1, s).mul_(c).mul_(gamma).add_(s).mul_(power) if gradient else None
    return c.mul_(power), slope


class _SigmoidFocal(torch.autograd.Function):
    """Focal loss summed over columns, with the gradient computed in the same pass."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, classes: Tensor, gamma: float, negative_weight: float, positive_weight: float
    ) -> Tensor:
        columns = logits.shape[-1]
        rows, wanted = logits.reshape(-1, columns), classes.reshape(-1, 1)
        losses = rows.new_empty(len(rows))
        slopes = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        size = rows_in_cache(len(rows), columns, logits.device)
        for begin in range(0, len(rows), size):
            part = slice(begin, begin + size)
            x, known, column = rows[part], wanted[part] != NO_COLUMN, wanted[part].clamp(min=0)
            own = x.gather(1, column)
            values, slope = negative_focal(
                x.scatter(1, column, torch.where(known, -own, own)), gamma, gradient=slopes is not None
            )
            weight = torch.full_like(own, negative_weight).masked_fill_(known, positive_weight)
            own = values.gather(1, column).mul_(weight)
            losses[part] = values.scatter_(1, column, 0.0).sum(1).mul_(negative_weight).add_(own.squeeze(1))
            if slopes is not None and slope is not None:
                own = slope.gather(1, column).mul_(weight.masked_fill_(known, -positive_weight))
                torch.mul(slope, negative_weight, out=slopes[part]).scatter_(1, column, own)
        ctx.save_for_backward(slopes)
        return losses.view(classes.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        (slopes,) = ctx.saved_tensors
        return (slopes * gradient.reshape(-1, 1)).view(*gradient.shape, slopes.shape[1]), None, None, None, None


class _Softmax(torch.autograd.Function):
    """Cross entropy: -log p of the target column, with gradient p minus the one-hot target."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, classes: Tensor) -> Tensor:
        known, column = classes != NO_COLUMN, classes.clamp(min=0)[..., None]
        logs = F.log_softmax(logits, dim=-1)
        losses = logs.gather(-1, column).squeeze(-1).neg_().masked_fill_(~known, 0.0)
        # In place: the gradient needs probabilities only, and a second tensor of the logits' size is saved.
        ctx.save_for_backward(logs.exp_() if ctx.needs_input_grad[0] else None, column, known)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        probabilities, column, known = ctx.saved_tensors
        counted = gradient.masked_fill(~known, 0.0)[..., None]
        return (probabilities * counted).scatter_add_(-1, column, -counted), None
