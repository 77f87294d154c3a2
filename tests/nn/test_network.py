"""What networks share."""

from __future__ import annotations

import pytest
from torch import nn

from boxwright.nn.network import Network, evaluation_mode


class OneNorm(Network):
    """A layer that learns beside normalization whose statistics stay."""

    frozen_statistics = ("frozen",)

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        self.free = nn.BatchNorm2d(4)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_from_before_returns_after_an_error(training: bool) -> None:
    network = OneNorm().train(training)
    with pytest.raises(ValueError, match="midway"), evaluation_mode(network):
        assert not network.training
        raise ValueError("midway")
    assert network.training == network.free.training == training


def test_frozen_statistics_stay_in_evaluation_mode() -> None:
    network = OneNorm()
    with evaluation_mode(network):
        assert not network.free.training
    assert network.free.training
    assert not network.frozen[1].training
