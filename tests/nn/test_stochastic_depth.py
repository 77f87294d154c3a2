"""Stochastic depth, beside torchvision's of the same draws."""

from __future__ import annotations

import pytest
import torch
from torchvision.ops import stochastic_depth

from boxwright.nn.drop_path import StochasticDepth


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.7])
def test_it_drops_what_torchvision_drops(rate: float) -> None:
    layer, outputs = StochasticDepth(rate), torch.rand(64, 3, 4, 5)
    torch.manual_seed(1)
    expected = stochastic_depth(outputs, rate, "row")
    torch.manual_seed(1)
    assert torch.equal(layer(outputs), expected)
    dropped = (expected == 0).flatten(1).all(1)
    assert bool(dropped.any()) == (rate > 0)
    assert not dropped.all()
    assert layer.eval()(outputs) is outputs
