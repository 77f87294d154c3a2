"""Optimizers and learning rates.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Bool, Float, Message, UInt32


class ConstantLearningRate(Message):
    """Learning rate that never changes."""

    proto_name: ClassVar[str] = "ConstantLearningRate"

    learning_rate: Float = Field(0.002, ge=0, allow_inf_nan=False, description="Learning rate at every step.")


class ExponentialDecayLearningRate(Message):
    """Exponentially decaying learning rate with an optional constant burn-in."""

    proto_name: ClassVar[str] = "ExponentialDecayLearningRate"

    initial_learning_rate: Float = Field(
        0.002, ge=0, allow_inf_nan=False, description="Learning rate at the start of the decay."
    )
    decay_steps: UInt32 = Field(
        4000000, ge=1, description="Steps over which the rate is multiplied once by decay_factor; must be above 0."
    )
    decay_factor: Float = Field(0.95, ge=0, allow_inf_nan=False, description="Multiplier applied once per decay_steps.")
    staircase: Bool = Field(
        True, description="true = drop in discrete jumps every decay_steps; false = decay smoothly."
    )
    burnin_learning_rate: Float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Constant rate used during burn-in; 0 = use initial_learning_rate."
    )
    burnin_steps: UInt32 = Field(0, ge=0, description="Number of first steps that use the burn-in rate.")
    min_learning_rate: Float = Field(
        0.0, ge=0, allow_inf_nan=False, description="The rate never falls below this value."
    )


class ManualStepLearningRateLearningRateSchedule(Message):
    """One change point of a manual learning-rate schedule."""

    proto_name: ClassVar[str] = "ManualStepLearningRate.LearningRateSchedule"

    step: UInt32 = Field(0, ge=0, description="Training step from which learning_rate applies.")
    learning_rate: Float = Field(0.002, ge=0, allow_inf_nan=False, description="Learning rate from this step on.")


class ManualStepLearningRate(Message):
    """Learning rate given as an explicit list of steps and values."""

    proto_name: ClassVar[str] = "ManualStepLearningRate"

    initial_learning_rate: Float = Field(
        0.002,
        ge=0,
        allow_inf_nan=False,
        description="Learning rate before the first scheduled step (start value if warmup is on).",
    )
    schedule: list[ManualStepLearningRateLearningRateSchedule] = Field(
        default_factory=list, description="List of steps at which the rate changes, in increasing order."
    )
    warmup: Bool = Field(
        False, description="Rise linearly from the initial rate to the first scheduled rate instead of jumping."
    )


class CosineDecayLearningRate(Message):
    """Linear warmup, optional hold, then cosine decay to 0."""

    proto_name: ClassVar[str] = "CosineDecayLearningRate"

    learning_rate_base: Float = Field(
        0.002, ge=0, allow_inf_nan=False, description="Peak learning rate, reached after warmup."
    )
    total_steps: UInt32 = Field(4000000, ge=0, description="Step at which the rate reaches 0; counts warmup and hold.")
    warmup_learning_rate: Float = Field(
        0.0002, ge=0, allow_inf_nan=False, description="Learning rate at step 0, if warmup_steps is above 0."
    )
    warmup_steps: UInt32 = Field(
        10000, ge=0, description="Steps of linear rise from warmup_learning_rate to learning_rate_base; 0 = no warmup."
    )
    hold_base_rate_steps: UInt32 = Field(
        0, ge=0, description="Steps to stay at learning_rate_base after warmup before decaying."
    )


class LearningRate(Message):
    """Choice of learning-rate schedule; set exactly one."""

    proto_name: ClassVar[str] = "LearningRate"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "learning_rate": (
            "constant_learning_rate",
            "exponential_decay_learning_rate",
            "manual_step_learning_rate",
            "cosine_decay_learning_rate",
        )
    }

    constant_learning_rate: ConstantLearningRate | None = Field(None, description="Same learning rate for all steps.")
    exponential_decay_learning_rate: ExponentialDecayLearningRate | None = Field(
        None, description="Learning rate shrinks by a fixed factor every so many steps."
    )
    manual_step_learning_rate: ManualStepLearningRate | None = Field(
        None, description="Learning rate follows an explicit list of steps and values."
    )
    cosine_decay_learning_rate: CosineDecayLearningRate | None = Field(
        None, description="Learning rate falls along a half cosine to 0, with optional warmup."
    )


class RMSPropOptimizer(Message):
    """Settings of the RMSProp optimizer."""

    proto_name: ClassVar[str] = "RMSPropOptimizer"

    learning_rate: LearningRate | None = Field(None, description="Learning-rate schedule of this optimizer.")
    momentum_optimizer_value: Float = Field(0.9, ge=0, le=1, description="Momentum coefficient; 0..1.")
    decay: Float = Field(
        0.9,
        allow_inf_nan=False,
        ge=0,
        description="With a TF1 extractor the decay of the average of squares; with others, as TF2 reads it, the rate is "
        "divided by 1 + decay × step.",
    )
    epsilon: Float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Small constant in the denominator that keeps the division stable."
    )


class MomentumOptimizer(Message):
    """Settings of SGD with momentum."""

    proto_name: ClassVar[str] = "MomentumOptimizer"

    learning_rate: LearningRate | None = Field(None, description="Learning-rate schedule of this optimizer.")
    momentum_optimizer_value: Float = Field(0.9, ge=0, le=1, description="Momentum coefficient; 0..1.")


class AdamOptimizer(Message):
    """Settings of the Adam optimizer."""

    proto_name: ClassVar[str] = "AdamOptimizer"

    learning_rate: LearningRate | None = Field(None, description="Learning-rate schedule of this optimizer.")
    epsilon: Float = Field(
        1e-08,
        ge=0,
        allow_inf_nan=False,
        description="Small constant in the denominator that keeps the division stable.",
    )


class AdamWOptimizer(Message):
    """Settings of Adam with decoupled weight decay (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "AdamWOptimizer"

    learning_rate: LearningRate | None = Field(None, description="Learning-rate schedule of this optimizer.")
    weight_decay: Float = Field(
        0.01,
        allow_inf_nan=False,
        ge=0,
        description="Share of each kernel, times the learning rate, that a step takes away; not of biases.",
    )
    beta1: Float = Field(0.9, le=1, ge=0, lt=1, description="Share of the old average of gradients that a step keeps.")
    beta2: Float = Field(0.999, le=1, ge=0, lt=1, description="Share of the old average of squares that a step keeps.")
    epsilon: Float = Field(
        1e-08,
        ge=0,
        allow_inf_nan=False,
        description="Small constant in the denominator that keeps the division stable.",
    )


class Optimizer(Message):
    """Choice of training optimizer and of weight averaging."""

    proto_name: ClassVar[str] = "Optimizer"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "optimizer": ("rms_prop_optimizer", "momentum_optimizer", "adam_optimizer", "adamw_optimizer")
    }

    rms_prop_optimizer: RMSPropOptimizer | None = Field(None, description="Train with RMSProp.")
    momentum_optimizer: MomentumOptimizer | None = Field(None, description="Train with SGD plus momentum.")
    adam_optimizer: AdamOptimizer | None = Field(None, description="Train with Adam.")
    adamw_optimizer: AdamWOptimizer | None = Field(None, description="Train with AdamW (an extension of Boxwright).")
    use_moving_average: Bool = Field(
        True, description="Also keep an exponential moving average of the weights during training."
    )
    moving_average_decay: Float = Field(
        0.9999, ge=0, le=1, description="Share of the old average kept at each step; 0..1, close to 1 = slow average."
    )
