"""The cases of TF's own tests of learning rates (learning_schedules_test), with their expected values."""

from __future__ import annotations

import math

import pytest

from boxwright.config.load import parse_message
from boxwright.nn.optimization.optimizers import Adam, AdamW, Momentum, RMSProp
from boxwright.nn.optimization.schedules import Constant, CosineDecay, ExponentialDecay, ManualSteps, Schedule, mismatch
from boxwright.pipeline import messages as m
from boxwright.pipeline.learning_rate import build_schedule
from boxwright.pipeline.optimizer import build_optimizer


@pytest.mark.parametrize(
    ("schedule", "steps", "wanted"),
    [
        (
            ExponentialDecay(1.0, 3, 0.1, True, 0.5, 2, 0.05),
            range(9),
            [0.5, 0.5, 1, 1, 1, 0.1, 0.1, 0.1, 0.05],
        ),
        (CosineDecay(2.0, 100, end_share=0.25), [0, 50, 100, 101], [2, 1.25, 0.5, 0.5]),
        # DEIM's: in the square of the step up to 10, then flat to 30, half a cosine to 50, and half of the peak.
        (
            CosineDecay(4.0, 50, 0.0, 10, 20, end_share=0.5, warmup_power=2),
            [0, 1, 5, 9, 10, 29, 40, 50, 60],
            [0, 0.04, 1, 3.24, 4, 4, 3, 2, 2],
        ),
        (CosineDecay(9.0, 100, 1.0, 4, warmup_power=3), [0, 1, 2, 4], [1, 1.125, 2, 9]),
        (CosineDecay(1.0, 100, 0.1, 9), [0, 4, 8, 9, 100, 101], [0.1, 0.5, 0.9, 1, 0, 0]),
        (
            CosineDecay(1.0, 120, 0.1, 9, 20),
            [0, 4, 8, 9, 10, 29, 30, 50, 70, 120],
            [0.1, 0.5, 0.9, 1, 1, 1, 0.999702, 0.874255, 0.577365, 0],
        ),
        (ManualSteps([2, 3, 7], [1, 2, 3, 4]), range(10), [1, 1, 2, 3, 3, 3, 3, 4, 4, 4]),
        (
            ManualSteps([4, 6, 8], [0.02, 0.10, 0.01, 0.001], True),
            range(9),
            [0.02, 0.04, 0.06, 0.08, 0.10, 0.10, 0.01, 0.01, 0.001],
        ),
        (ManualSteps([], [0.01]), range(4), [0.01] * 4),
        (Constant(0.004), [0, 1000], [0.004, 0.004]),
    ],
)
def test_tf_cases(schedule: Schedule, steps: list[int], wanted: list[float]) -> None:
    assert [schedule(step) for step in steps] == pytest.approx(wanted, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "step", "wanted"),
    [
        ("constant_learning_rate { learning_rate: 0.004 }", 7, 0.004),
        (
            "exponential_decay_learning_rate { initial_learning_rate: 0.004 decay_steps: 99999 decay_factor: 0.85 staircase: false }",
            99999,
            0.0034,
        ),
        (
            "manual_step_learning_rate { initial_learning_rate: 0.002 schedule { step: 100 learning_rate: 0.006 } "
            "schedule { step: 90000 learning_rate: 0.00006 } warmup: true }",
            50,
            0.004,
        ),
        (
            "cosine_decay_learning_rate { learning_rate_base: 0.002 total_steps: 20000 warmup_learning_rate: 0.0001 "
            "warmup_steps: 1000 hold_base_rate_steps: 20000 }",
            15000,
            0.002,
        ),
        (
            "cosine_decay_learning_rate { learning_rate_base: 0.002 total_steps: 20 warmup_steps: 0 }",
            5,
            0.001 * (1 + math.cos(math.pi / 4)),
        ),
    ],
)
def test_built_from_text(text: str, step: int, wanted: float) -> None:
    assert build_schedule(parse_message(text, m.LearningRate))(step) == pytest.approx(wanted, rel=1e-6)


RATE = "learning_rate { constant_learning_rate { learning_rate: 0.001 } }"


@pytest.mark.parametrize(
    ("text", "rule", "decay"),
    [
        (
            f"rms_prop_optimizer {{ {RATE} momentum_optimizer_value: 0.9 decay: 0.9 epsilon: 1.0 }} use_moving_average: false",
            RMSProp(0.9, 1.0),
            None,
        ),
        (
            f"momentum_optimizer {{ {RATE} momentum_optimizer_value: 0.99 }} use_moving_average: false",
            Momentum(0.99),
            None,
        ),
        (f"adam_optimizer {{ {RATE} epsilon: 1e-6 }} use_moving_average: false", Adam(1e-6), None),
        (f"adam_optimizer {{ {RATE} }} use_moving_average: true", Adam(1e-8), 0.9999),
        (f"adam_optimizer {{ {RATE} }} use_moving_average: true moving_average_decay: 0.2", Adam(1e-8), 0.2),
        (f"adamw_optimizer {{ {RATE} weight_decay: 0.05 }}", AdamW(0.05), 0.9999),
    ],
)
def test_optimizers_that_tf_tests(text: str, rule: object, decay: float | None) -> None:
    plan = build_optimizer(parse_message(text, m.Optimizer))
    assert plan.rule == rule
    assert plan.average_decay == decay


@pytest.mark.parametrize(
    ("schedule", "num_steps", "wanted"),
    [
        (CosineDecay(1.0, 100), 100, ""),
        (CosineDecay(1.0, 100), 101, ""),
        (CosineDecay(1.0, 100), 250, "the learning rate is 0 from step 100 on, and training goes to step 250"),
        (CosineDecay(1.0, 1000, 0.1, 500), 300, "still rises at the last step, 300"),
        (Constant(0.1), 10, ""),
        (Constant(0.0), 1, ""),
        (ManualSteps([4], [0.1, 1.0], True), 3, "still rises"),
    ],
)
def test_a_schedule_that_does_not_fit(schedule: Schedule, num_steps: int, wanted: str) -> None:
    found = mismatch(schedule, num_steps)
    assert wanted in found
    assert bool(wanted) == bool(found)
