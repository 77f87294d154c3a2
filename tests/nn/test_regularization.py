"""Penalties: by hand, and their gradients by differences."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from boxwright.nn.layers import Conv2d
from boxwright.nn.regularization import Regularizer, add_penalty_gradients, regularization_loss


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [Conv2d(2, 3, 3, bias=True), Conv2d(3, 2, 1), Conv2d(2, 2, 3), Conv2d(2, 1, 1)]
    layers[0].regularizer, layers[0].bias_regularizer = Regularizer(l2=0.5), Regularizer(l1=0.25)
    layers[1].regularizer = Regularizer(l2=0.5)
    layers[2].regularizer = Regularizer(l1=0.1, l2=0.2)
    return nn.Sequential(*layers).double()


def test_the_sum_by_hand() -> None:
    layers = network()
    w0, b0, w1, w2 = layers[0].weight, layers[0].bias, layers[1].weight, layers[2].weight
    wanted = 0.25 * ((w0**2).sum() + (w1**2).sum()) + 0.25 * b0.abs().sum() + 0.1 * w2.abs().sum() + 0.1 * (w2**2).sum()
    found = regularization_loss(layers)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
    learnt = [w0, b0, w1, w2, layers[3].weight]
    ours = torch.autograd.grad(3 * found, learnt, allow_unused=True)
    theirs = torch.autograd.grad(3 * wanted, learnt, allow_unused=True)
    for mine, other in zip(ours[:4], theirs[:4], strict=True):
        torch.testing.assert_close(mine, other)
    assert ours[4] is None, "what has no price"


def test_nothing_is_penalized() -> None:
    assert regularization_loss(nn.Sequential(Conv2d(1, 1, 1))).item() == 0


def test_gradients_are_added_to_those_that_are_there() -> None:
    """As a backward pass from losses and penalty together would, to the last bit."""
    together, apart = network().float(), network().float()
    inputs = torch.rand(1, 2, 12, 12)
    for layers in (together, apart):
        layers[2].weight.requires_grad_(False)
    torch.autograd.backward(together(inputs).sum() + regularization_loss(together))
    torch.autograd.backward(apart(inputs).sum())
    add_penalty_gradients(apart)
    for one, other in zip(together.parameters(), apart.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None) == (not one.requires_grad)
        assert one.grad is None or (other.grad is not None and torch.equal(one.grad, other.grad))
    alone = network()
    add_penalty_gradients(alone)
    wanted = torch.autograd.grad(regularization_loss(alone), alone[2].weight)
    assert alone[2].weight.grad is not None
    torch.testing.assert_close(alone[2].weight.grad, *wanted)
    assert alone[3].weight.grad is None, "what has no price"


def test_what_is_frozen_gets_no_gradient() -> None:
    layers = network()
    layers[1].weight.requires_grad_(False)
    regularization_loss(layers).backward()  # type: ignore[no-untyped-call]
    assert layers[1].weight.grad is None
    assert layers[0].weight.grad is not None
