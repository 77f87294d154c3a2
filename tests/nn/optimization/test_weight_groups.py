"""Weights with a learning rate or decay of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import boxwright as bw
from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.nn.optimization.optimizers import AdamW, Momentum, Optimizer, UpdateRule, WeightGroup, grouped
from boxwright.pipeline import messages as m
from boxwright.pipeline.optimizer import build_optimizer
from tests.conftest import Silent


class Two(nn.Module):
    """A convolution and a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        normalized: torch.Tensor = self.norm(self.body(inputs))
        return normalized


GROUPS = (
    WeightGroup(("^body",), factor=0.5),
    WeightGroup(("bias$",), decay=0.0),
    WeightGroup(("norm.weight",), 2.0, 0.3),
)


@pytest.mark.parametrize("rule", [AdamW(0.1), Momentum()])
def test_each_learns_as_by_an_optimizer_of_its_own(rule: UpdateRule) -> None:
    torch.manual_seed(0)
    whole, alone = Two(), Two()
    alone.load_state_dict(whole.state_dict())
    parts, _ = grouped(whole, GROUPS, {})
    optimizer = Optimizer(parts, rule)
    optimizer.set_rate(0.1)
    rates = {"body.weight": 0.05, "body.bias": 0.05, "norm.weight": 0.2, "norm.bias": 0.1}
    others = {name: Optimizer([one], rule) for name, one in alone.named_parameters()}
    for _ in range(3):
        inputs = torch.randn(2, 2, 4, 4)
        for network in (whole, alone):
            network.zero_grad()
            torch.autograd.backward(network(inputs).square().sum())
        optimizer.step()
        for name, one in others.items():
            if name == "norm.weight":
                with torch.no_grad():
                    alone.norm.weight.mul_(1 - 0.2 * 0.3)
            one.set_rate(rates[name])
            one.step()
    for name, value in alone.named_parameters():
        torch.testing.assert_close(whole.get_parameter(name), value, rtol=1e-5, atol=1e-6)


def test_a_decay_in_place_of_the_optimizers() -> None:
    layer = nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    parts, said = grouped(layer, [WeightGroup(("weight",), decay=0.5)], {})
    optimizer = Optimizer(parts, AdamW(0.9))
    optimizer.set_rate(0.1)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), before * 0.95)
    assert said == [
        "parameter group: 1 variables (weight 1) at the learning rate, with a decay of 0.5",
        "parameter group: 1 variables (bias 1) at the learning rate, with the optimizer's decay",
    ]


def test_a_pattern_that_hits_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"parameter_group\[1\].variables: 'nothing' hits none of the 4 variables"):
        grouped(Two(), [WeightGroup(("body",), 1.0), WeightGroup(("nothing",), 1.0)], {})


def test_the_message() -> None:
    text = """adamw_optimizer { learning_rate { constant_learning_rate { } } }
      parameter_group { variables: "^backbone" learning_rate_factor: 0.25 }
      parameter_group { variables: ["norm", "bias"] weight_decay: 0 }"""
    assert build_optimizer(parse_message(text, m.Optimizer)).groups == (
        WeightGroup(("^backbone",), 0.25, None),
        WeightGroup(("norm", "bias"), None, 0.0),
    )


def test_a_run_says_its_groups_and_goes_on_with_them(small_config: Path, tmp_path: Path) -> None:
    heard: list[str] = []

    class Listener(Silent):
        def message(self, text: str) -> None:
            heard.append(text)

    Listener()
    group = 'train_config.optimizer.parameter_group={variables: "^backbone" learning_rate_factor: 0}'
    settings = bw.RunSettings(workers=0, preflight=False, evaluate=False)
    bw.train(bw.load_config(small_config, [group, "train_config.num_steps=1"]), tmp_path / "m", settings)
    assert len([line for line in heard if line.startswith("parameter group: ")]) == 2
    first, _, _ = bw.restore_detector(tmp_path / "m")
    bw.train(bw.load_config(small_config, [group, "train_config.num_steps=2"]), tmp_path / "m", settings)
    second, _, _ = bw.restore_detector(tmp_path / "m")
    same = {
        name: torch.equal(value, second.network.get_parameter(name))
        for name, value in first.network.named_parameters()
        if value.requires_grad
    }
    assert all(one for name, one in same.items() if name.startswith("backbone."))
    assert not any(one for name, one in same.items() if name.startswith("neck.") and name.endswith("conv.weight"))
