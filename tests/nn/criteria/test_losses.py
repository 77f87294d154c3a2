"""Losses against their formulas, written out on dense rows, in float64, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.nn.criteria import losses
from boxwright.nn.criteria.anchor import AnchorCriterion, LossNormalizer
from boxwright.nn.criteria.losses import (
    NO_COLUMN,
    SigmoidCrossEntropy,
    SigmoidFocal,
    SmoothL1,
    SoftmaxCrossEntropy,
    SquaredError,
    as_columns,
    as_rows,
    penalty_reduced_focal_loss,
    sigmoid_focal_loss,
    softmax_loss,
)
from boxwright.nn.criteria.target_assigner import ArgmaxMatcher, ClassColumns, TargetAssigner
from boxwright.nn.ops.boxes import FasterRcnnBoxCoder
from boxwright.types import AnchorPredictions, Targets


def test_losses_by_hand() -> None:
    zero, one, weight = torch.zeros(1, 1, 2), torch.tensor([[[1.0, 0.0]]]), torch.tensor([[2.0]])
    log2 = math.log(2)
    assert SigmoidCrossEntropy()(zero, one, weight).item() == pytest.approx(2 * 2 * log2)
    assert SoftmaxCrossEntropy()(zero, one, weight).item() == pytest.approx(2 * log2)
    # p = 0.5: (1 − p_t)² = 0.25; α = 0.25 for the positive column and 0.75 for the negative one.
    assert SigmoidFocal()(zero, one, weight).item() == pytest.approx(2 * 0.25 * log2 * (0.25 + 0.75))
    codes = torch.tensor([[[0.5, 3.0]]])
    assert SmoothL1(1.0)(codes, torch.zeros(1, 1, 2), weight).item() == pytest.approx(2 * (0.125 + 2.5))
    assert SquaredError()(codes, torch.zeros(1, 1, 2), weight).item() == pytest.approx(0.5 * 4 * (0.25 + 9))


@pytest.mark.parametrize("padding", [0, 3], ids=["no rows", "padding only"])
def test_criterion_on_images_without_objects(padding: int) -> None:
    """All anchors are background; the loss is finite and pulls every class logit down."""
    assigner = TargetAssigner(
        ClassColumns(2, 1, NO_COLUMN), ArgmaxMatcher(force_match_for_each_row=True), FasterRcnnBoxCoder()
    )
    criterion = AnchorCriterion(assigner, SigmoidFocal(), SmoothL1(), LossNormalizer())
    logits = torch.zeros(2, 3, 3, requires_grad=True)
    anchors = torch.tensor([[0.0, 0, 8, 8], [8, 0, 16, 8], [0, 8, 8, 16]])
    targets = Targets(
        torch.zeros(2, padding, 4),
        torch.zeros(2, padding, dtype=torch.int64),
        torch.zeros(2, padding),
        torch.zeros(2, padding) > 0,
    )
    losses = criterion(AnchorPredictions(torch.randn(2, 3, 4), logits, anchors), targets)
    assert losses["Loss/localization_loss"].value.item() == 0
    losses["Loss/classification_loss"].value.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert (logits.grad > 0).all()


def test_padding_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    anchors = torch.tensor([[float(x), float(y), x + 8.0, y + 8.0] for x in range(0, 32, 4) for y in range(0, 32, 4)])
    predictions = AnchorPredictions(
        torch.randn(1, len(anchors), 4, generator=generator),
        torch.randn(1, len(anchors), 4, generator=generator),
        anchors,
    )
    boxes, labels = torch.tensor([[[3.0, 3, 12, 12], [20, 16, 28, 30]]]), torch.tensor([[1, 2]])
    plain = Targets(boxes, labels, torch.ones(1, 2), torch.ones(1, 2) > 0)
    padded = Targets(
        torch.cat([boxes, torch.zeros(1, 6, 4)], 1),
        torch.cat([labels, torch.zeros(1, 6, dtype=torch.int64)], 1),
        torch.cat([torch.ones(1, 2), torch.zeros(1, 6)], 1),
        torch.cat([torch.ones(1, 2), torch.zeros(1, 6)], 1) > 0,
    )
    assigner = TargetAssigner(ClassColumns(3), ArgmaxMatcher(force_match_for_each_row=True), FasterRcnnBoxCoder())
    criterion = AnchorCriterion(assigner, SigmoidCrossEntropy(), SmoothL1(), LossNormalizer())
    assert criterion(predictions, plain) == criterion(predictions, padded)


CLASSES = torch.tensor([[0, NO_COLUMN, 4, 2], [NO_COLUMN, NO_COLUMN, 1, 0]])
FOCAL = [(0.0, None), (2.0, 0.25), (1.5, 0.25), (2.0, None), (1.0, 0.0), (2.0, 1.0), (0.5, 0.9)]


def logits(scale: float = 3.0) -> torch.Tensor:
    torch.manual_seed(0)
    return (scale * torch.randn(2, 4, 5, dtype=torch.float64)).requires_grad_()


def focal_by_definition(x: torch.Tensor, gamma: float, alpha: float | None) -> torch.Tensor:
    """Equation 5 of the paper, a column at a time."""
    losses = torch.zeros(x.shape[:2], dtype=x.dtype)
    for image in range(x.shape[0]):
        for anchor in range(x.shape[1]):
            for column in range(x.shape[2]):
                positive = int(CLASSES[image, anchor]) == column
                p = torch.sigmoid(x[image, anchor, column])
                p_t = p if positive else 1 - p
                weight = 1.0 if alpha is None else (alpha if positive else 1 - alpha)
                losses[image, anchor] -= weight * (1 - p_t) ** gamma * p_t.log()
    return losses


@pytest.mark.parametrize(("gamma", "alpha"), FOCAL)
def test_focal_loss_and_its_gradient(gamma: float, alpha: float | None) -> None:
    x = logits()
    torch.testing.assert_close(sigmoid_focal_loss(x, CLASSES, gamma, alpha), focal_by_definition(x, gamma, alpha))
    assert torch.autograd.gradcheck(lambda given: sigmoid_focal_loss(given, CLASSES, gamma, alpha), (x,))


def test_binary_cross_entropy_of_extreme_logits() -> None:
    x = torch.tensor([[[-200.0, 200.0, 30.0, 0.0, -30.0]] * 4] * 2, requires_grad=True)
    found = sigmoid_focal_loss(x, CLASSES, 0.0, None)
    wanted = F.binary_cross_entropy_with_logits(x.detach(), as_rows(CLASSES, 5), reduction="none").sum(-1)
    torch.testing.assert_close(found.detach(), wanted)
    focal = sigmoid_focal_loss(x, CLASSES, 2.0, 0.25)
    focal.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(focal).all()
    assert torch.isfinite(x.grad).all()


def test_softmax_loss_and_its_gradient() -> None:
    x = logits()
    wanted = F.cross_entropy(x.flatten(0, 1), CLASSES.flatten(), ignore_index=NO_COLUMN, reduction="none").view(2, 4)
    torch.testing.assert_close(softmax_loss(x, CLASSES), wanted)
    assert torch.autograd.gradcheck(lambda given: softmax_loss(given, CLASSES), (x,))


@pytest.mark.parametrize("in_cache", [1, 5, 13, 1 << 16])
def test_pieces_of_any_size_give_the_same(in_cache: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_IN_CACHE", in_cache)
    x = logits()
    found = sigmoid_focal_loss(x, CLASSES, 2.0, 0.25)
    torch.testing.assert_close(found, focal_by_definition(x, 2.0, 0.25))
    (gradient,) = torch.autograd.grad(found.sum(), x)
    (wanted,) = torch.autograd.grad(focal_by_definition(x, 2.0, 0.25).sum(), x)
    torch.testing.assert_close(gradient, wanted)


def test_nothing_to_judge() -> None:
    x = torch.zeros(2, 0, 5, requires_grad=True)
    none = torch.zeros(2, 0, dtype=torch.int64)
    for found in (sigmoid_focal_loss(x, none, 2.0, 0.25), softmax_loss(x, none)):
        assert found.shape == (2, 0)
        found.sum().backward()


def test_a_nan_is_not_hidden() -> None:
    x = torch.zeros(1, 1, 3)
    x[0, 0, 1] = torch.nan
    one = torch.tensor([[0]])
    assert sigmoid_focal_loss(x, one, 2.0, 0.25).isnan().all()
    assert softmax_loss(x, one).isnan().all()


def test_rows_and_columns() -> None:
    rows = as_rows(CLASSES, 5)
    assert rows[0].tolist() == [[1, 0, 0, 0, 0], [0] * 5, [0, 0, 0, 0, 1], [0, 0, 1, 0, 0]]
    assert as_rows(rows, 5) is rows
    assert as_columns(CLASSES).tolist() == as_columns(rows).tolist() == [[0, 0, 4, 2], [0, 0, 1, 0]]


CLIP = 1e-4


def written_out(logits: Tensor, targets: Tensor, weights: Tensor, alpha: float, beta: float) -> Tensor:
    """Return CornerNet's equation 1 with probabilities clipped as in TF."""
    p = torch.sigmoid(logits).clamp(CLIP, 1 - CLIP)
    positive = (1 - p) ** alpha * p.log()
    negative = (1 - targets) ** beta * p**alpha * (1 - p).log()
    return (-torch.where(targets == 1, positive, negative) * weights).sum(-1)


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 4.0), (1.5, 3.0), (0.0, 0.0)])
@pytest.mark.parametrize("columns", [1, 7])
@pytest.mark.parametrize("in_cache", [1 << 17, 40])
def test_values_and_gradients(
    alpha: float, beta: float, columns: int, in_cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where logits are clipped, targets are 1 or nearly so, and rows are computed in several parts."""
    monkeypatch.setattr(losses, "_IN_CACHE", in_cache)
    generator = torch.Generator().manual_seed(0)
    logits = (12 * torch.randn(2, 30, 7, generator=generator, dtype=torch.float64)).requires_grad_()
    targets = torch.rand(2, 30, 7, generator=generator, dtype=torch.float64)
    targets[:, ::3] = 1.0
    targets[:, 1::5] = 0.0
    weights = torch.rand(2, 30, columns, generator=generator, dtype=torch.float64)
    upstream = torch.rand(2, 30, generator=generator, dtype=torch.float64)
    wanted = written_out(logits, targets, weights, alpha, beta)
    found = penalty_reduced_focal_loss(logits, targets, weights, alpha=alpha, beta=beta, clip=CLIP)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    (slope,), (expected,) = (torch.autograd.grad(loss, logits, upstream) for loss in (found, wanted))
    torch.testing.assert_close(slope, expected, rtol=1e-7, atol=1e-12)
    assert (slope == 0).any(), "some logits are clipped"
    with torch.no_grad():
        again = penalty_reduced_focal_loss(logits, targets, weights, alpha=alpha, beta=beta, clip=CLIP)
    torch.testing.assert_close(again, wanted, rtol=1e-9, atol=1e-12)
