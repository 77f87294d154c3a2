from __future__ import annotations

import pytest
import torch

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.nn.optimization.moving_average import MovingAverage
from boxwright.nn.optimization.optimizers import AdamW, Optimizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.optimizer import build_optimizer


@pytest.mark.parametrize(
    ("decay", "wanted"),
    [
        # From 0, by min(decay, 2/11), min(decay, 3/12), min(decay, 4/13): TF's dynamic decay.
        (0.2, [9 / 11 * 2, 0.2 * 9 / 11 * 2 + 0.8 * 3, 0.2 * (0.2 * 9 / 11 * 2 + 0.8 * 3) + 0.8 * 5]),
        (0.9999, [18 / 11, 18 / 44 + 9 / 4, (18 / 44 + 9 / 4) * 4 / 13 + 45 / 13]),
        (0.0, [2, 3, 5]),
    ],
)
def test_moving_average_by_hand(decay: float, wanted: list[float]) -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    average = MovingAverage(layer, decay)
    found = []
    for count, weight in enumerate((2.0, 3.0, 5.0)):
        with torch.no_grad():
            layer.weight.fill_(weight)
        average.update(layer, count)
        found.append(average.shadow["weight"].item())
    assert found == pytest.approx(wanted)


def test_statistics_are_averaged_where_they_are_named() -> None:
    network = torch.nn.Sequential(torch.nn.BatchNorm1d(1))
    average, plain = MovingAverage(network, 0.2, ["0.running_mean", "0.running_var"]), MovingAverage(network, 0.2)
    found = []
    for count, mean in enumerate((2.0, 3.0, 5.0)):
        network[0].running_mean.fill_(mean)  # type: ignore[union-attr, operator]
        average.update(network, count)
        found.append(average.shadow["0.running_mean"].item())
    first = 9 / 11 * 2
    assert found == pytest.approx([first, 0.2 * first + 0.8 * 3, 0.2 * (0.2 * first + 0.8 * 3) + 0.8 * 5])
    # It starts at its value, not at 0, and one that never changes is the same to the bit.
    assert average.shadow["0.running_var"].item() == 1.0
    assert average.shadow.keys() - plain.shadow.keys() == {"0.running_mean", "0.running_var"}


def test_adamw_is_pytorchs_with_biases_undecayed() -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Linear(5, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    groups = [{"params": [theirs.weight], "weight_decay": 0.1}, {"params": [theirs.bias], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.05, betas=(0.8, 0.95), eps=1e-3)
    optimizer = Optimizer(ours.parameters(), AdamW(0.1, 0.8, 0.95, 1e-3))
    optimizer.param_groups[0]["lr"] = 0.05
    for _ in range(7):
        x = torch.randn(4, 5)
        for layer, one in ((ours, optimizer), (theirs, reference)):
            one.zero_grad()
            torch.autograd.backward(layer(x).square().sum())
            one.step()
    assert torch.allclose(ours.weight, theirs.weight, rtol=1e-5, atol=1e-6)
    assert torch.allclose(ours.bias, theirs.bias, rtol=1e-5, atol=1e-6)


def test_average_is_kept_unless_told_otherwise() -> None:
    text = "momentum_optimizer { learning_rate { constant_learning_rate { } } }"
    assert build_optimizer(parse_message(text, m.Optimizer)).average_decay == 0.9999
    assert build_optimizer(parse_message(text + " use_moving_average: false", m.Optimizer)).average_decay is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "Optimizer: empty"),
        ("adam_optimizer { }", "adam_optimizer.learning_rate: missing"),
        ("adam_optimizer { learning_rate { } }", "adam_optimizer.learning_rate: empty"),
        (
            "adam_optimizer { learning_rate { constant_learning_rate { learning_rate: -1 } } }",
            ":1:.*greater than or equal to 0",
        ),
        ("adam_optimizer { learning_rate { manual_step_learning_rate { } } }", "no schedule"),
        (
            "adam_optimizer { learning_rate { manual_step_learning_rate { schedule { step: 5 } schedule { step: 5 } } } }",
            "expected rising steps",
        ),
        (
            "adam_optimizer { learning_rate { cosine_decay_learning_rate { total_steps: 5 warmup_steps: 9 } } }",
            "total_steps: 5 is less than warmup_steps 9",
        ),
        (
            "adam_optimizer { learning_rate { exponential_decay_learning_rate { decay_steps: 0 } } }",
            "decay_steps: .*or equal to 1",
        ),
        (
            "adamw_optimizer { learning_rate { cosine_decay_learning_rate { learning_rate_base: -0.1 warmup_steps: 0 } } }",
            r"learning_rate_base: should be greater than or equal to 0, found -0.1",
        ),
        (
            "adam_optimizer { learning_rate { constant_learning_rate { } } } moving_average_decay: 1.5",
            ":1:.*moving_average_decay: should be less than or equal to 1, found 1.5",
        ),
    ],
)
def test_bad_configurations(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        build_optimizer(parse_message(text, m.Optimizer))
