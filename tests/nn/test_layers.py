"""Pooling with TF's SAME padding, against its definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from boxwright.nn.layers import MaxPool2d

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
