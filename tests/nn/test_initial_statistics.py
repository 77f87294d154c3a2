"""The initial values in moving statistics: hand-worked cases, and the calls of each layer in every family."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import boxwright as bw
from boxwright.nn.batch_norm import BatchNorm2d
from boxwright.nn.initial_statistics import (
    impossible_shares,
    shares_of_layers,
    shares_of_new,
    statistics_decay,
    take_out_initial,
    without_initial,
)
from boxwright.nn.network import Network
from boxwright.pipeline.training import build_training
from boxwright.training.losses import LossModule, recompute_blocks
from tests.center_nets import CENTER_NET
from tests.d_fines import D_FINE
from tests.exporters.small_detectors import FAMILIES, SRN, build, some_first
from tests.training.test_sharding import step_of
from tests.two_stage_models import FASTER_RCNN


class Normalized(Network):
    """One layer, called as often as asked."""

    def __init__(self, calls: int = 1, decay: float = 0.9) -> None:
        super().__init__()
        self.norm, self.calls = BatchNorm2d(1, momentum=1 - decay), calls
        self.norm.calls_per_pass = calls  # type: ignore[assignment]

    def forward(self, inputs: Tensor, *_: Any) -> Tensor:
        for _number in range(self.calls):
            outputs: Tensor = self.norm(inputs)
        return outputs


def batch(mean: float, variance: float) -> Tensor:
    """Return two values with this mean and this unbiased variance, [1, 1, 1, 2]."""
    half = math.sqrt(variance / 2)
    return torch.tensor([mean - half, mean + half]).reshape(1, 1, 1, 2)


def test_two_updates_worked_by_hand() -> None:
    """Decay 0.9, batches of mean 1 and 2, of variance 0.5 and 0.1: averages weigh them 0.09 and 0.1 of 0.19."""
    network = Normalized().train()
    network.initial_shares = shares_of_new(network)
    network(batch(1, 0.5))
    network(batch(2, 0.1))
    network.initial_shares = network.initial_shares.after(2)
    assert network.norm.running_mean == pytest.approx(0.29)
    assert network.norm.running_var == pytest.approx(0.81 + 0.045 + 0.01)
    assert network.initial_shares.by_layer() == pytest.approx({"norm": 0.81})
    take_out_initial(network)
    assert network.norm.running_mean == pytest.approx((0.09 * 1 + 0.1 * 2) / 0.19)
    assert network.norm.running_var == pytest.approx((0.09 * 0.5 + 0.1 * 0.1) / 0.19, rel=1e-5)


def test_of_one_update_nothing_is_left_but_the_batch() -> None:
    network = Normalized(decay=0.98).train()
    network(batch(-3, 6e-4))
    network.initial_shares = shares_of_new(Normalized(decay=0.98)).after(1)
    take_out_initial(network)
    assert network.norm.running_mean == pytest.approx(-3, rel=1e-5)
    assert network.norm.running_var == pytest.approx(6e-4, rel=0.01)


def test_an_average_of_statistics_worked_by_hand() -> None:
    """Moving averages of decay 0.995 begin with decays 2/11 and 3/12; statistics of decay 0.9 hold 0.9 and 0.81.

    Of the average 2/11 · 1 + 9/11 · 0.9 = 10.1/11 is initial after one update, and a quarter of that and three
    quarters of 0.81 after two.
    """
    first = shares_of_new(Normalized()).after(1, 2 / 11)
    second = first.after(1, 3 / 12)
    assert first.of_average().by_layer() == pytest.approx({"norm": 10.1 / 11})
    assert second.of_average().by_layer() == pytest.approx({"norm": 0.25 * 10.1 / 11 + 0.75 * 0.81})
    assert second.by_layer() == pytest.approx({"norm": 0.81})
    assert first.after(1).of_average().by_layer() == first.of_average().by_layer(), "no update of the average"


def test_repeated_calls_count() -> None:
    network = Normalized(calls=3).train()
    network.initial_shares = shares_of_new(network).after(1)
    network(batch(1, 0.5))
    take_out_initial(network)
    assert network.norm.running_var == pytest.approx(0.5, rel=1e-5)


def test_what_came_with_weights_or_saw_nothing_stays() -> None:
    loaded, frozen = Normalized(), Normalized()
    loaded.norm.running_mean = torch.tensor([0.25])
    assert not shares_of_new(loaded)
    frozen.frozen_statistics = ("",)
    shares = shares_of_new(frozen).after(1000)
    assert shares.by_layer() == {"norm": 1.0}
    assert without_initial(frozen.state_dict(), shares.by_layer()) == {}
    cumulative = nn.BatchNorm2d(1, momentum=None)
    assert statistics_decay(cumulative) == 0


def test_calls_that_nobody_names_leave_statistics_as_they_are() -> None:
    network = Normalized(calls=3).train()
    network.norm.calls_per_pass = 1  # type: ignore[assignment]
    network.initial_shares = shares_of_new(network).after(2)
    for mean in (1, 2):
        network(batch(mean, 0.01))
    with pytest.warns(UserWarning, match="batch normalization of norm holds less of mean 0"):
        assert without_initial(network.state_dict(), network.initial_shares.by_layer()) == {}


def test_a_layer_that_began_otherwise_is_noticed() -> None:
    shares = {"norm": 0.81}
    state = Normalized().state_dict()
    assert impossible_shares({**state, "norm.running_var": torch.tensor([0.811])}, shares) == []
    assert impossible_shares({**state, "norm.running_var": torch.tensor([0.7])}, shares) == ["norm"]


def test_layers_updated_together_share_a_number() -> None:
    network = build(FAMILIES["ssd"]).network
    names = [name for name, one in network.named_modules() if isinstance(one, nn.BatchNorm2d)]
    shares = shares_of_layers(network, dict.fromkeys(names, 1.0), {})
    assert len(names) > 50
    assert len(shares.groups) == 1
    assert sorted(shares.by_layer()) == sorted(names)


NORMED = "conv_hyperparams { activation: RELU batch_norm { decay: 0.9 } }"
MORE = {
    "d_fine": D_FINE,
    "center_net": CENTER_NET,
    # Whose convolutions and norms all levels share, and with them statistics.
    "faster_rcnn, normalized proposals": FASTER_RCNN.replace(
        "first_stage_box_predictor_conv_hyperparams {",
        "first_stage_box_predictor_conv_hyperparams { batch_norm { decay: 0.9 } ",
        1,
    ),
    "srn, normalized": SRN.replace("depth: 16", f"depth: 16 {NORMED}"),
    "srn, normalized, one head": SRN.replace("depth: 16", f"depth: 16 share_head: true {NORMED}"),
}


@pytest.mark.parametrize("family", [*some_first(FAMILIES), *MORE, "ssd, recomputed", "mask_rcnn, paper, recomputed"])
def test_a_training_pass_updates_layers_as_often_as_its_network_says(family: str, small_config: Path) -> None:
    """Beside a huge value what a batch adds is nothing: what is left of it are decays, one of each call."""
    plan = build_training(bw.load_config(small_config))
    detector = build({**FAMILIES, **MORE}[family.removesuffix(", recomputed")]).train()
    if family.endswith(", recomputed"):
        assert recompute_blocks(detector.network.get_submodule("backbone")) > 2
    norms = {name: one for name, one in detector.network.named_modules() if isinstance(one, nn.BatchNorm2d)}
    for norm in norms.values():
        assert norm.running_var is not None
        norm.running_var.fill_(1e30)
    step_of(LossModule(detector, plan))
    shares = shares_of_layers(detector.network, dict.fromkeys(norms, 1.0), {}).after(1).by_layer()
    for name, norm in norms.items():
        assert norm.running_var is not None
        assert torch.allclose(norm.running_var / 1e30, torch.tensor(shares[name]), rtol=1e-5), name
