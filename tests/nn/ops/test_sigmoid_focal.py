"""The compiled focal loss: as by the paper's formula in float64, whatever the number of threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.base.c_compiler import CompilerError
from boxwright.nn.criteria.class_index_losses import NO_COLUMN, as_rows, sigmoid_focal_loss
from boxwright.nn.ops import sigmoid_focal
from boxwright.nn.ops.sigmoid_focal import compiled_focal_loss, gains_from_kernel
from tests.nn.ops.test_norm_act import threads

FOCAL = [(0.0, 1.0, 1.0), (2.0, 0.75, 0.25), (1.5, 0.75, 0.25), (1.0, 1.0, 0.0), (0.5, 0.1, 0.9)]


def given(columns: int, scale: float = 5.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(columns)
    logits = scale * torch.randn(3, 40, columns, generator=generator)
    return logits, torch.randint(NO_COLUMN, columns, (3, 40), generator=generator)


def by_definition(x: Tensor, classes: Tensor, gamma: float, negative: float, positive: float) -> Tensor:
    """Equation 5 of the paper, in float64."""
    targets = as_rows(classes, x.shape[-1]).double()
    entropy = F.binary_cross_entropy_with_logits(x, targets, reduction="none")
    missed = torch.where(targets > 0, torch.sigmoid(-x), torch.sigmoid(x))
    return (entropy * missed**gamma * torch.where(targets > 0, positive, negative)).sum(-1)


def results(logits: Tensor, classes: Tensor, settings: tuple[float, float, float]) -> tuple[Tensor, Tensor]:
    x = logits.clone().requires_grad_()
    loss = compiled_focal_loss(x, classes, *settings)
    return loss.detach(), torch.autograd.grad(loss, x, upstream(loss))[0]


def upstream(loss: Tensor) -> Tensor:
    return torch.rand(loss.shape, generator=torch.Generator().manual_seed(1)).to(loss)


@pytest.mark.parametrize("settings", FOCAL)
@pytest.mark.parametrize("columns", [1, 7, 16, 91])
def test_loss_and_gradient_as_by_definition(columns: int, settings: tuple[float, float, float]) -> None:
    logits, classes = given(columns)
    exact = logits.double().requires_grad_()
    loss = by_definition(exact, classes, *settings)
    (slope,) = torch.autograd.grad(loss, exact, upstream(loss))
    found = results(logits, classes, settings)
    torch.testing.assert_close(found[0].double(), loss.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[1].double(), slope, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("settings", FOCAL)
def test_extreme_logits_have_finite_losses_and_gradients(settings: tuple[float, float, float]) -> None:
    logits = torch.tensor([[[-200.0, 200.0, 30.0, 0.0, -30.0, -88.0, 88.0]] * 2])
    classes = torch.tensor([[1, 0]])
    loss, slope = results(logits, classes, settings)
    expected = by_definition(logits.double(), classes, *settings)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    assert bool(slope.isfinite().all())


def test_what_is_not_a_number_stays_it() -> None:
    logits, classes = given(20)
    logits[1, 3, 18] = torch.nan
    loss, slope = results(logits, classes, FOCAL[1])
    assert loss.isnan().nonzero().tolist() == [[1, 3]]
    assert slope.isnan().nonzero().tolist() == [[1, 3, 18]]


def test_the_number_of_threads_changes_no_bit() -> None:
    found = []
    for count in (1, 2, 5):
        with threads(count):
            found.append(results(*given(33), FOCAL[1]))
    assert all(torch.equal(one, first) for result in found[1:] for one, first in zip(result, found[0], strict=True))


def test_which_logits_the_kernel_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(2, 200, 91)
    assert gains_from_kernel(logits)
    assert not gains_from_kernel(logits.double())
    assert not gains_from_kernel(logits[:, :10])
    classes = torch.randint(-1, 91, (2, 200))
    by_kernel = sigmoid_focal_loss(logits, classes, 2.0, 0.25)
    monkeypatch.setattr(sigmoid_focal, "kernels", lambda: CompilerError("no C compiler"))
    assert not gains_from_kernel(logits)
    torch.testing.assert_close(sigmoid_focal_loss(logits, classes, 2.0, 0.25), by_kernel, rtol=1e-6, atol=1e-6)


def test_logits_and_classes_that_are_not_contiguous() -> None:
    logits, classes = given(16)
    turned = logits.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(
        compiled_focal_loss(turned, classes.t().contiguous().t(), *FOCAL[1]),
        compiled_focal_loss(logits, classes, *FOCAL[1]),
    )
