"""Zeros around maps."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from boxwright.nn.layers import same_padding, zero_padded
from tests.cuda.fake import CUDA, fake_cuda

LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sides", [(0, 1, 0, 1), (1, 2, 0, 3), (0, 0, 2, 0), (3, 0, 0, 0)])
def test_values_gradients_and_layout_are_those_of_pytorch(
    sides: tuple[int, int, int, int], layout: torch.memory_format
) -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=layout)
    mine, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    padded, expected = zero_padded(mine, sides), F.pad(theirs, sides)
    torch.testing.assert_close(padded, expected, rtol=0, atol=0)
    assert padded.is_contiguous(memory_format=layout)
    given = torch.randn(padded.shape, generator=generator)
    padded.backward(given)
    expected.backward(given)
    assert mine.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=0)


def test_nothing_to_pad_copies_nothing() -> None:
    values = torch.randn(1, 2, 3, 4, requires_grad=True)
    assert zero_padded(values, (0, 0, 0, 0)) is values


def test_a_gpu_is_told_of_two_operations() -> None:
    """All zeros and the values, where the CPU writes zeros to each side."""
    with fake_cuda() as recorder:
        values = torch.ones(1, 2, 3, 4, device=CUDA)
        recorder.clear()
        padded = zero_padded(values, (0, 1, 0, 1))
        assert (padded.device, padded.shape) == (CUDA, (1, 2, 4, 5))
        assert sum(recorder.kernels.values()) == 2
        assert not recorder.waits


def test_infinite_values_stay_inside() -> None:
    values = torch.full((1, 1, 2, 2), torch.inf, requires_grad=True)
    assert zero_padded(values, (1, 0, 0, 1))[0, 0].tolist() == [
        [0.0, torch.inf, torch.inf],
        [0.0, torch.inf, torch.inf],
        [0.0, 0.0, 0.0],
    ]


@pytest.mark.parametrize(
    ("size", "side", "stride", "expected"),
    # TF's SAME: total = max((ceil(n / s) - 1) * s + k - n, 0), the odd pixel behind.
    [(4, 3, 2, (0, 1)), (5, 3, 2, (1, 1)), (4, 3, 1, (1, 1)), (7, 2, 2, (0, 1)), (8, 1, 2, (0, 0)), (5, 7, 3, (2, 3))],
)
def test_same_padding_as_worked_out_by_hand(size: int, side: int, stride: int, expected: tuple[int, int]) -> None:
    assert same_padding(torch.zeros(1, 1, size, size), (side, side), stride) == (*expected, *expected)
