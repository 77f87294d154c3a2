"""`Optimizer` and `LearningRate`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from boxwright.builders.choice import build_chosen, require
from boxwright.builders.tensorflow_version import tensorflow_version
from boxwright.config import messages as m
from boxwright.optimization.optimizers import Adam, AdamW, Momentum, MomentumTF1, RMSProp, RMSPropTF1, UpdateRule
from boxwright.optimization.schedules import (
    Constant,
    CosineDecay,
    ExponentialDecay,
    InverseTimeDecay,
    ManualSteps,
    Schedule,
)


@dataclass(frozen=True)
class OptimizerPlan:
    """The optimizer of a run.

    Attributes:
        average_decay: The decay of the weights' moving average; None for none.
    """

    rule: UpdateRule
    schedule: Schedule
    average_decay: float | None


def build_optimizer(config: m.Optimizer, version: int = 2) -> OptimizerPlan:
    """Build an optimizer's plan with the semantics of TensorFlow `version` 1 or 2."""
    rule = build_chosen(config, "optimizer", _OPTIMIZERS[version])
    chosen = getattr(config, config.which("optimizer") or "")
    schedule = build_schedule(require(chosen.learning_rate, chosen, "learning_rate"))
    rms_prop = config.rms_prop_optimizer
    if version == 2 and rms_prop is not None and rms_prop.decay:
        # TF2's object detection passes the field to Keras as a decay of the rate.
        schedule = InverseTimeDecay(schedule, rms_prop.decay)
    return OptimizerPlan(
        rule=rule,
        schedule=schedule,
        average_decay=config.moving_average_decay if config.use_moving_average else None,
    )


def learning_rates(config: m.TrainEvalPipelineConfig) -> Schedule | None:
    """Return the learning rate of each step of a run; None if the configuration has no optimizer."""
    train = config.train_config
    if train is None or train.optimizer is None or train.optimizer.which("optimizer") is None:
        return None
    chosen = getattr(train.optimizer, train.optimizer.which("optimizer") or "")
    if chosen.learning_rate is None:
        return None
    return build_optimizer(train.optimizer, tensorflow_version(config.model)).schedule


def _momentum(config: m.MomentumOptimizer) -> UpdateRule:
    return Momentum(config.momentum_optimizer_value)


def _momentum_tf1(config: m.MomentumOptimizer) -> UpdateRule:
    return MomentumTF1(config.momentum_optimizer_value)


def _rms_prop(config: m.RMSPropOptimizer) -> UpdateRule:
    return RMSProp(config.momentum_optimizer_value, config.epsilon)


def _rms_prop_tf1(config: m.RMSPropOptimizer) -> UpdateRule:
    return RMSPropTF1(config.momentum_optimizer_value, config.decay, config.epsilon)


def _adam(config: m.AdamOptimizer) -> UpdateRule:
    return Adam(config.epsilon)


def _adamw(config: m.AdamWOptimizer) -> UpdateRule:
    return AdamW(config.weight_decay, config.beta1, config.beta2, config.epsilon)


_TF2: dict[str, Callable[[Any], UpdateRule]] = {
    "momentum_optimizer": _momentum,
    "rms_prop_optimizer": _rms_prop,
    "adam_optimizer": _adam,
    "adamw_optimizer": _adamw,
}
# Version of TensorFlow → builders of its members.
_OPTIMIZERS: dict[int, dict[str, Callable[[Any], UpdateRule]]] = {
    1: {**_TF2, "momentum_optimizer": _momentum_tf1, "rms_prop_optimizer": _rms_prop_tf1},
    2: _TF2,
}


def build_schedule(config: m.LearningRate) -> Schedule:
    """Build a learning-rate schedule."""
    return build_chosen(config, "learning_rate", _SCHEDULES)


def _constant(config: m.ConstantLearningRate) -> Schedule:
    return Constant(config.learning_rate)


def _exponential(config: m.ExponentialDecayLearningRate) -> Schedule:
    return ExponentialDecay(
        rate=config.initial_learning_rate,
        decay_steps=config.decay_steps,
        decay_factor=config.decay_factor,
        staircase=config.staircase,
        burnin_rate=config.burnin_learning_rate,
        burnin_steps=config.burnin_steps,
        floor=config.min_learning_rate,
    )


def _manual(config: m.ManualStepLearningRate) -> Schedule:
    boundaries = [stage.step for stage in config.schedule]
    rates = [config.initial_learning_rate, *(stage.learning_rate for stage in config.schedule)]
    return ManualSteps(boundaries, rates, config.warmup)


def _cosine(config: m.CosineDecayLearningRate) -> Schedule:
    return CosineDecay(
        rate=config.learning_rate_base,
        total_steps=config.total_steps,
        warmup_rate=config.warmup_learning_rate,
        warmup_steps=config.warmup_steps,
        hold_steps=config.hold_base_rate_steps,
    )


_SCHEDULES: dict[str, Callable[[Any], Schedule]] = {
    "constant_learning_rate": _constant,
    "exponential_decay_learning_rate": _exponential,
    "manual_step_learning_rate": _manual,
    "cosine_decay_learning_rate": _cosine,
}
