"""Losses of column numbers: against the formulas on dense rows, in float64, and their gradients by differences."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from boxwright.nn.criteria import classification_losses
from boxwright.nn.criteria.classification_losses import NO_COLUMN, as_columns, as_rows, sigmoid_focal_loss, softmax_loss

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
    monkeypatch.setattr(classification_losses, "_IN_CACHE", in_cache)
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
