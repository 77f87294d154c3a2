"""Losses of classes and boxes over anchors.

Each takes logits or box codes, targets and weights, and returns one loss per anchor; the criterion sums, mines and
normalizes. A class target is the index of the column that is 1, or `NO_COLUMN` for a row of zeros, or a row of floats.
Rows would take as much memory as the logits, and each step of a formula another pass over both; so values and gradients
of the losses with indices, and of heatmaps' focal loss, are computed in one pass.

Dimensions: B batch, A anchors (cells of a heatmap), C columns (classes, and background if any), S code size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from boxwright.nn.ops.boxes import compute_overlaps, rows_at_once

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
        input_gradient = (slopes * gradient.reshape(-1, 1)).view(*gradient.shape, slopes.shape[1])
        return input_gradient, None, None, None, None, None


def _power(base: Tensor, exponent: float) -> Tensor:
    """Return a power, in place; PyTorch's own takes ten times as long for the usual 4."""
    return base.square_().square_() if exponent == 4 else base.pow_(exponent)


class ClassificationLoss(Protocol):
    """A loss for each anchor."""

    def __call__(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted losses.

        Args:
            logits: float [B, A, C].
            targets: int64 [B, A], columns or NO_COLUMN; or float [B, A, C] in 0..1.
            weights: float [B, A, 1], or [B, A, C] for weights per column.

        Returns:
            float [B, A].
        """
        ...


@dataclass(frozen=True)
class SigmoidCrossEntropy:
    """Binary cross entropy summed over columns."""

    def __call__(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return float [B, A]."""
        if _are_columns(targets, weights):
            return sigmoid_focal_loss(logits, targets, gamma=0.0, alpha=None) * weights.squeeze(-1)
        targets = as_rows(targets, logits.shape[-1])
        return _weigh(F.binary_cross_entropy_with_logits(logits, targets, reduction="none"), weights)


@dataclass(frozen=True)
class SigmoidFocal:
    """Focal loss, which reduces the weight of easy columns (Focal Loss for Dense Object Detection, equation 5).

    Attributes:
        gamma: How fast the weight of easy columns falls.
        alpha: The weight of positive columns, 1 - alpha that of negative ones; None weights both by 1.
    """

    gamma: float = 2.0
    alpha: float | None = 0.25

    def __call__(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return float [B, A]."""
        if _are_columns(targets, weights):
            return sigmoid_focal_loss(logits, targets, self.gamma, self.alpha) * weights.squeeze(-1)
        targets = as_rows(targets, logits.shape[-1])
        cross_entropy = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        probability = torch.sigmoid(logits)
        # 1 - p_t in a form that needs no second pass over p.
        error = probability + targets - 2 * probability * targets
        loss = cross_entropy * (error * error if self.gamma == 2.0 else error**self.gamma)
        if self.alpha is not None:
            loss = loss * (1 - self.alpha + (2 * self.alpha - 1) * targets)
        return _weigh(loss, weights)


@dataclass(frozen=True)
class SoftmaxCrossEntropy:
    """Softmax cross entropy."""

    logit_scale: float = 1.0

    def __call__(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return float [B, A]."""
        if targets.ndim == 2:
            # A softmax has one loss per anchor; TF averages weights that are given for each column.
            return softmax_loss(logits / self.logit_scale, targets) * weights.mean(-1)
        log_probabilities = F.log_softmax(logits / self.logit_scale, dim=-1)
        return -(log_probabilities * targets).sum(-1) * weights.mean(-1)


@dataclass(frozen=True)
class SoftmaxAgainstLogits:
    """Softmax cross entropy against targets that are logits too.

    Attributes:
        logit_scale: Divides the logits of predictions and targets.
    """

    logit_scale: float = 1.0

    def __call__(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return float [B, A]."""
        wanted = torch.softmax(as_rows(targets, logits.shape[-1]) / self.logit_scale, dim=-1)
        return -(F.log_softmax(logits / self.logit_scale, dim=-1) * wanted).sum(-1) * weights.mean(-1)


@dataclass(frozen=True)
class BootstrappedSigmoid:
    """Sigmoid cross entropy with targets mixed with the prediction (Reed et al., 2014, section 3.3).

    Attributes:
        alpha: The weight of the targets; the prediction's is 1 - alpha.
        hard: Whether the prediction is rounded to 0 or 1 first.
    """

    alpha: float
    hard: bool = False

    def __call__(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return float [B, A]."""
        probability = torch.sigmoid(logits)
        believed = (probability > 0.5).to(logits.dtype) if self.hard else probability
        mixed = self.alpha * as_rows(targets, logits.shape[-1]) + (1 - self.alpha) * believed
        return _weigh(F.binary_cross_entropy_with_logits(logits, mixed, reduction="none"), weights)


@dataclass(frozen=True)
class PenaltyReducedFocal:
    """Focal loss for targets that fall off around objects (CornerNet, equation 1; CenterNet, equation 1).

    Only a target of exactly 1 is positive; near it, negatives cost less.

    Attributes:
        alpha: How fast the weight of easy columns falls.
        beta: How fast the cost of negatives falls near objects.
        clip: The margin by which probabilities are clipped from 0 and 1.
    """

    alpha: float = 2.0
    beta: float = 4.0
    clip: float = 1e-4

    def __call__(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return float [B, A]."""
        targets = as_rows(targets, logits.shape[-1])
        # Exactly 1 is the peak of a Gaussian at the cell of an object. Values just below it are its neighbors.
        return penalty_reduced_focal_loss(logits, targets, weights, alpha=self.alpha, beta=self.beta, clip=self.clip)


@dataclass(frozen=True)
class Dice:
    """One minus the Dice coefficient of prediction and target, for each class of an image.

    The denominator is at least 1, so a class whose targets and weights are all 0 has loss 1.

    Attributes:
        squared: Whether predictions and targets are squared first.
        from_probabilities: Whether predictions are probabilities rather than logits.
    """

    squared: bool = False
    from_probabilities: bool = False

    def __call__(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return float [B, C], over all anchors of an image."""
        targets = as_rows(targets, logits.shape[-1])
        predicted = logits if self.from_probabilities else torch.sigmoid(logits)
        power = 2 if self.squared else 1
        predicted, wanted = predicted**power * weights, targets**power * weights
        both = (predicted * wanted).sum(1)
        return 1 - 2 * both / (predicted.sum(1) + wanted.sum(1)).clamp(min=1.0)


def _are_columns(targets: Tensor, weights: Tensor) -> bool:
    """Return whether targets are column indices with one weight per anchor."""
    return targets.ndim == 2 and weights.shape[-1] == 1


def _weigh(losses: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum over columns, [B, A]."""
    if weights.shape[-1] == 1:
        return losses.sum(-1) * weights.squeeze(-1)  # the same, with one pass over all columns fewer
    return (losses * weights).sum(-1)


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
