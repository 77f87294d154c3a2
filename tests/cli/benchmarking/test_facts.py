"""What a run costs, counted by hand."""

from __future__ import annotations

import pytest
import torch

from boxwright.cli.benchmarking.facts import facts
from boxwright.nn.layers import Conv2d


def test_operations_are_those_of_the_definition() -> None:
    conv = Conv2d(128, 160, 3, bias=True).requires_grad_(False)
    inputs = torch.randn(1, 128, 40, 48).to(memory_format=torch.channels_last)
    found = facts(conv, lambda: conv(inputs), lambda: conv(inputs))
    assert found.gflops == pytest.approx(2 * 40 * 48 * 128 * 160 * 9 / 1e9)
    assert found.parameters == 128 * 160 * 9 + 160
    assert found.peak_mib >= 40 * 48 * 160 * 4 / 2**20
