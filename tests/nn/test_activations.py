"""ReLU6, whose gradient is told from its result alone."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from boxwright.nn.layers import ReLU6

VALUES = torch.tensor([-torch.inf, -1.0, -0.0, 0.0, 1e-38, 3.0, 6.0, 6.0000005, 1e30, torch.inf])


def test_values_and_gradients_are_those_of_pytorch_at_the_corners_too() -> None:
    mine, theirs = VALUES.clone().requires_grad_(), VALUES.clone().requires_grad_()
    # In place on a leaf is an error, as for PyTorch's: something comes before.
    outputs, expected = ReLU6()(mine * 1), F.relu6(theirs * 1)
    torch.testing.assert_close(outputs, expected, rtol=0, atol=0)
    given = torch.arange(1.0, len(VALUES) + 1)
    outputs.backward(given)
    expected.backward(given)
    assert mine.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=0)
    assert mine.grad.count_nonzero() == 2  # 1e-38 and 3; 0 and 6 themselves pass nothing


def test_it_works_in_place_and_keeps_one_map() -> None:
    source = torch.linspace(-3, 9, 100).requires_grad_()
    before = source * 1
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one.data_ptr()) or one, lambda one: one):
        after = ReLU6()(before)
    assert after.data_ptr() == before.data_ptr()
    assert kept == [before.data_ptr()]


def test_nan_stays_and_passes_no_gradient_as_in_pytorch() -> None:
    mine = torch.tensor([torch.nan, 1.0], requires_grad=True)
    outputs = ReLU6()(mine * 1)
    assert outputs.isnan().tolist() == [True, False]
    theirs = torch.tensor([torch.nan, 1.0], requires_grad=True)
    F.relu6(theirs * 1).sum().backward()
    outputs.sum().backward()
    assert mine.grad is not None
    assert theirs.grad is not None
    assert mine.grad.tolist() == theirs.grad.tolist()


def test_without_gradients() -> None:
    values = torch.tensor([-1.0, 7.0])
    assert ReLU6()(values).tolist() == values.tolist() == [0.0, 6.0]
