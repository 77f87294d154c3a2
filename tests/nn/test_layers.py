"""Pooling and padding as TF's SAME, against their definitions; ReLU6, whose gradient is told from its result alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.nn.layers import MaxPool2d, ReLU6, same_padding, zero_padded
from tests.cuda.fake import CUDA, fake_cuda

SIZES = [(height, width) for height in range(1, 9) for width in (1, 4, 5, 6, 7, 8)]


def maxima(maps: Tensor, side: int, stride: int) -> Tensor:
    """Return the maximum of each window's pixels within maps [B, C, H, W], one window after another."""
    starts = []
    for size in maps.shape[2:]:
        count = -(-size // stride)
        padding = max((count - 1) * stride + side - size, 0)
        starts.append([number * stride - padding // 2 for number in range(count)])
    rows = [
        torch.stack(
            [maps[:, :, max(top, 0) : top + side, max(left, 0) : left + side].amax((2, 3)) for left in starts[1]], -1
        )
        for top in starts[0]
    ]
    return torch.stack(rows, -2)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("side", [2, 3, 4])
def test_maximum_over_windows(side: int, stride: int) -> None:
    pool = MaxPool2d(side, stride)
    for size in SIZES:
        maps = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0)) - 5  # below any padding of zeros
        assert torch.equal(pool(maps), maxima(maps, side, stride)), size
        ours, other = (maps.clone().requires_grad_() for _ in range(2))
        gradients = [
            torch.autograd.grad(pooled.square().sum(), given)[0]
            for given, pooled in ((ours, pool(ours)), (other, maxima(other, side, stride)))
        ]
        assert torch.equal(*gradients), size
    assert len(SIZES) == 48


def test_a_graph_pads_as_it_would_for_any_size() -> None:
    maps = torch.randn(1, 2, 12, 12) - 5
    program = torch.export.export(MaxPool2d(3, 2), (maps,), strict=False)
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["aten.pad.default", "aten.max_pool2d.default"]
    assert torch.equal(program.module()(maps), maxima(maps, 3, 2))


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
