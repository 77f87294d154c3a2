from __future__ import annotations

import pytest
import torch

from boxwright.builders.optimizer import build_optimizer
from boxwright.config import messages as m
from boxwright.config import parse_message
from boxwright.errors import ConfigError
from boxwright.optimization.moving_average import MovingAverage


def test_moving_average_by_hand() -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    average = MovingAverage(layer, 0.2)
    with torch.no_grad():
        layer.weight.fill_(2.0)
    average.update(layer)
    assert average.shadow["weight"].item() == pytest.approx(0.2 * 1 + 0.8 * 2)


def test_average_is_kept_unless_told_otherwise() -> None:
    text = "momentum_optimizer { learning_rate { constant_learning_rate { } } }"
    assert build_optimizer(parse_message(text, m.Optimizer)).average_decay == 0.9999
    assert build_optimizer(parse_message(text + " use_moving_average: false", m.Optimizer)).average_decay is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "Optimizer is empty"),
        ("adam_optimizer { }", "learning_rate is missing"),
        ("adam_optimizer { learning_rate { } }", "LearningRate is empty"),
        ("adam_optimizer { learning_rate { constant_learning_rate { learning_rate: -1 } } }", "cannot be negative"),
        ("adam_optimizer { learning_rate { manual_step_learning_rate { } } }", "no schedule"),
        (
            "adam_optimizer { learning_rate { manual_step_learning_rate { schedule { step: 5 } schedule { step: 5 } } } }",
            "expected rising steps",
        ),
        (
            "adam_optimizer { learning_rate { cosine_decay_learning_rate { total_steps: 5 warmup_steps: 9 } } }",
            "total_steps 5 is less than warmup_steps 9",
        ),
        ("adam_optimizer { learning_rate { exponential_decay_learning_rate { decay_steps: 0 } } }", "at least 1"),
    ],
)
def test_bad_configurations(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        build_optimizer(parse_message(text, m.Optimizer))
