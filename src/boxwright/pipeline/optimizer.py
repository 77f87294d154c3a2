"""`Optimizer`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from boxwright.config.build import build_chosen
from boxwright.nn.optimization.optimizers import (
    Adam,
    AdamW,
    Momentum,
    MomentumTF1,
    RMSProp,
    RMSPropTF1,
    UpdateRule,
    WeightGroup,
)
from boxwright.nn.optimization.schedules import Schedule
from boxwright.pipeline import messages as m
from boxwright.pipeline.learning_rate import build_learning_rate


@dataclass(frozen=True)
class OptimizerPlan:
    """The optimizer of a run.

    Attributes:
        average_decay: The decay of the weights' moving average, to which it rises; None for none.
        average_ramp_steps: How slowly it rises exponentially; 0 for TF's rule.
        average_statistics: Whether the average is also of normalization's statistics.
        groups: Weights with a rate or decay of their own.
    """

    rule: UpdateRule
    schedule: Schedule
    average_decay: float | None
    groups: tuple[WeightGroup, ...] = ()
    average_statistics: bool = False
    average_ramp_steps: int = 0


def build_optimizer(config: m.Optimizer, version: int = 2) -> OptimizerPlan:
    """Build an optimizer's plan with the semantics of TensorFlow `version` 1 or 2."""
    rule = build_chosen(config, "optimizer", _TF1 if version == 1 else _TF2)
    return OptimizerPlan(
        rule=rule,
        schedule=build_learning_rate(config, version),
        average_decay=config.moving_average_decay if config.use_moving_average else None,
        groups=tuple(_group(group) for group in config.parameter_group),
        average_statistics=config.average_statistics,
        average_ramp_steps=config.moving_average_ramp_steps,
    )


def _group(config: m.ParameterGroup) -> WeightGroup:
    return WeightGroup(
        tuple(config.variables),
        config.learning_rate_factor if config.has("learning_rate_factor") else None,
        config.weight_decay if config.has("weight_decay") else None,
    )


_TF2: dict[str, Callable[[Any], UpdateRule]] = {
    "momentum_optimizer": lambda c: Momentum(c.momentum_optimizer_value),
    "rms_prop_optimizer": lambda c: RMSProp(c.momentum_optimizer_value, c.epsilon),
    "adam_optimizer": lambda c: Adam(c.epsilon),
    "adamw_optimizer": lambda c: AdamW(c.weight_decay, c.beta1, c.beta2, c.epsilon),
}
_TF1: dict[str, Callable[[Any], UpdateRule]] = {
    **_TF2,
    "momentum_optimizer": lambda c: MomentumTF1(c.momentum_optimizer_value),
    "rms_prop_optimizer": lambda c: RMSPropTF1(c.momentum_optimizer_value, c.decay, c.epsilon),
}
