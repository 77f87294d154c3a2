"""`LearningRate`; without PyTorch, as an evaluation of an exported detector reports its rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boxwright.config.build import build_chosen, require
from boxwright.nn.optimization.schedules import (
    Constant,
    CosineDecay,
    ExponentialDecay,
    InverseTimeDecay,
    ManualSteps,
    Schedule,
)
from boxwright.pipeline import messages as m
from boxwright.pipeline.tensorflow_version import tensorflow_version


def learning_rates(config: m.TrainEvalPipelineConfig) -> Schedule | None:
    """Return the learning rate of each step of a run; None if the configuration has no optimizer."""
    train = config.train_config
    if train is None or train.optimizer is None or train.optimizer.which("optimizer") is None:
        return None
    chosen = train.optimizer.chosen("optimizer")
    if chosen.learning_rate is None:
        return None
    return build_learning_rate(train.optimizer, tensorflow_version(config.model))


def build_learning_rate(config: m.Optimizer, version: int) -> Schedule:
    """Build an optimizer's learning rate with the semantics of TensorFlow `version` 1 or 2."""
    chosen = config.chosen("optimizer")
    schedule = build_schedule(require(chosen.learning_rate, chosen, "learning_rate"))
    rms_prop = config.rms_prop_optimizer
    if version == 2 and rms_prop is not None and rms_prop.decay:
        # TF2's object detection passes the field to Keras as a decay of the rate.
        return InverseTimeDecay(schedule, rms_prop.decay)
    return schedule


def build_schedule(config: m.LearningRate) -> Schedule:
    """Build a learning-rate schedule."""
    return build_chosen(config, "learning_rate", _SCHEDULES)


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
        end_share=config.end_factor,
        warmup_power=config.warmup_power,
    )


_SCHEDULES: dict[str, Callable[[Any], Schedule]] = {
    "constant_learning_rate": lambda config: Constant(config.learning_rate),
    "exponential_decay_learning_rate": _exponential,
    "manual_step_learning_rate": _manual,
    "cosine_decay_learning_rate": _cosine,
}
