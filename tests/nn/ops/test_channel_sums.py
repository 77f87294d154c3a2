"""Sums of channels."""

from __future__ import annotations

import pytest
import torch

from boxwright.nn.ops.channel_sums import channel_sums


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 4, 5), (0, 3, 4, 5), (3, 64, 17, 1)])
def test_sums(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(memory_format=layout)
    torch.testing.assert_close(channel_sums(maps), maps.double().sum((0, 2, 3)).float())
