"""Optimizers and learning rates.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import UInt32, field, number
from boxwright.config.message import Message
from boxwright.config.rules import refuse, rising


class ConstantLearningRate(Message):
    """Learning rate that never changes."""

    learning_rate: float = number(0.002, "[0, inf)", "Learning rate at every step.")

class ExponentialDecayLearningRate(Message):
    """Exponentially decaying learning rate with an optional constant burn-in."""

    initial_learning_rate: float = number(0.002, "[0, inf)", "Learning rate at the start of the decay.")
    decay_steps: UInt32 = number(4000000, "[1, inf)",
        "Steps over which the rate is multiplied once by decay_factor; must be above 0.")
    decay_factor: float = number(0.95, "[0, inf)", "Multiplier applied once per decay_steps.")
    staircase: bool = field(True, "true = drop in discrete jumps every decay_steps; false = decay smoothly.")
    burnin_learning_rate: float = number(0.0, "[0, inf)",
        "Constant rate used during burn-in; 0 = use initial_learning_rate.")
    burnin_steps: UInt32 = number(0, "[0, inf)", "Number of first steps that use the burn-in rate.")
    min_learning_rate: float = number(0.0, "[0, inf)", "The rate never falls below this value.")

class ManualStepLearningRateLearningRateSchedule(Message, name="ManualStepLearningRate.LearningRateSchedule"):
    """One change point of a manual learning-rate schedule."""

    step: UInt32 = number(0, "[0, inf)", "Training step from which learning_rate applies.")
    learning_rate: float = number(0.002, "[0, inf)", "Learning rate from this step on.")

class ManualStepLearningRate(Message):
    """Learning rate given as an explicit list of steps and values."""

    initial_learning_rate: float = number(0.002, "[0, inf)",
        "Learning rate before the first scheduled step (start value if warmup is on).")
    schedule: list[ManualStepLearningRateLearningRateSchedule] = field([],
        "List of steps at which the rate changes, in increasing order.")
    warmup: bool = field(False, "Rise linearly from the initial rate to the first scheduled rate instead of jumping.")

    rules = (
        refuse("", "no schedule; at least one is expected", when=lambda c: not c.schedule),
        rising("schedule", "step"),
    )

class CosineDecayLearningRate(Message):
    """Linear warmup, optional hold, then cosine decay to 0."""

    learning_rate_base: float = number(0.002, "[0, inf)", "Peak learning rate, reached after warmup.")
    total_steps: UInt32 = number(4000000, "[0, inf)", "Step at which the rate reaches 0; counts warmup and hold.")
    warmup_learning_rate: float = number(0.0002, "[0, inf)", "Learning rate at step 0, if warmup_steps is above 0.")
    warmup_steps: UInt32 = number(10000, "[0, inf)",
        "Steps of rise from warmup_learning_rate to learning_rate_base; 0 = no warmup.")
    warmup_power: float = number(1.0, "[1, inf)", "Ours: the rise is in proportion to this power of the step: 1 "
        "linear, 2 quadratic.")
    hold_base_rate_steps: UInt32 = number(0, "[0, inf)",
        "Steps to stay at learning_rate_base after warmup before decaying.")
    end_factor: float = number(0.0, "[0, 1]", "Ours: the rate falls to this share of learning_rate_base, and stays.")

    rules = (
        refuse("total_steps", "{total_steps} is less than warmup_steps {warmup_steps}",
            when=lambda c: c.total_steps < c.warmup_steps),
        refuse("learning_rate_base", "{learning_rate_base} is less than warmup_learning_rate {warmup_learning_rate}",
            when=lambda c: c.warmup_steps > 0 and c.learning_rate_base < c.warmup_learning_rate),
    )

class LearningRate(Message, oneof="learning_rate"):
    """Choice of learning-rate schedule; set exactly one."""

    constant_learning_rate: ConstantLearningRate | None = field(None, "Same learning rate for all steps.")
    exponential_decay_learning_rate: ExponentialDecayLearningRate | None = field(None,
        "Learning rate shrinks by a fixed factor every so many steps.")
    manual_step_learning_rate: ManualStepLearningRate | None = field(None,
        "Learning rate follows an explicit list of steps and values.")
    cosine_decay_learning_rate: CosineDecayLearningRate | None = field(None,
        "Learning rate falls along a half cosine to 0, with optional warmup.")

class RMSPropOptimizer(Message):
    """Settings of the RMSProp optimizer."""

    learning_rate: LearningRate | None = field(None, "Learning-rate schedule of this optimizer.")
    momentum_optimizer_value: float = number(0.9, "[0, 1]", "Momentum coefficient.")
    decay: float = number(0.9, "[0, inf)", "With a TF1 extractor the decay of the average of squares; with others, as "
        "TF2 reads it, the rate is divided by 1 + decay × step.")
    epsilon: float = number(1.0, "[0, inf)", "Small constant in the denominator that keeps the division stable.")

class MomentumOptimizer(Message):
    """Settings of SGD with momentum."""

    learning_rate: LearningRate | None = field(None, "Learning-rate schedule of this optimizer.")
    momentum_optimizer_value: float = number(0.9, "[0, 1]", "Momentum coefficient.")

class AdamOptimizer(Message):
    """Settings of the Adam optimizer."""

    learning_rate: LearningRate | None = field(None, "Learning-rate schedule of this optimizer.")
    epsilon: float = number(1e-08, "[0, inf)", "Small constant in the denominator that keeps the division stable.")

class AdamWOptimizer(Message):
    """Settings of Adam with decoupled weight decay (an extension of Boxwright)."""

    learning_rate: LearningRate | None = field(None, "Learning-rate schedule of this optimizer.")
    weight_decay: float = number(0.01, "[0, inf)",
        "Share of each kernel, times the learning rate, that a step takes away; not of biases.")
    beta1: float = number(0.9, "[0, 1)", "Share of the old average of gradients that a step keeps.")
    beta2: float = number(0.999, "[0, 1)", "Share of the old average of squares that a step keeps.")
    epsilon: float = number(1e-08, "[0, inf)", "Small constant in the denominator that keeps the division stable.")

class ParameterGroup(Message):
    """Variables with a rate or decay of their own (an extension of Boxwright); where two groups name one, the later."""

    variables: list[str] = field([], "Name patterns (regex) of the variables.")
    learning_rate_factor: float = number(1.0, "[0, inf)", "Times the learning rate.")
    weight_decay: float = number(0.0, "[0, inf)", "Share of each, times the learning rate, that a step takes away, "
        "biases and normalization included; unset: what the optimizer has.")

    rules = (
        refuse("", "no variables", when=lambda c: not c.variables),
        refuse("", "set learning_rate_factor or weight_decay",
            when=lambda c: not c.has("learning_rate_factor") and not c.has("weight_decay")),
    )

class Optimizer(Message):
    """Choice of training optimizer and of weight averaging."""

    rms_prop_optimizer: RMSPropOptimizer | None = field(None, "Train with RMSProp.", oneof="optimizer")
    momentum_optimizer: MomentumOptimizer | None = field(None, "Train with SGD plus momentum.", oneof="optimizer")
    adam_optimizer: AdamOptimizer | None = field(None, "Train with Adam.", oneof="optimizer")
    adamw_optimizer: AdamWOptimizer | None = field(None, "Ours: train with AdamW.", oneof="optimizer")
    use_moving_average: bool = field(True, "Also keep an exponential moving average of the weights during training.")
    moving_average_decay: float = number(0.9999, "[0, 1]",
        "Share of the old average kept at each step; 0..1, close to 1 = slow average.")
    moving_average_ramp_steps: UInt32 = number(0, "[0, inf)", "Ours: the decay of update n = 1, 2, … is "
        "moving_average_decay × (1 − e^(−n / this)), and the first update copies the weights; 0: TF's rule, the "
        "smaller of moving_average_decay and (1 + n) / (10 + n).")
    parameter_group: list[ParameterGroup] = field([], "Ours: variables with a rate or decay of their own.")
    average_statistics: bool = field(False, "Ours: the moving average is also of batch normalization's statistics, as "
        "DETRs' authors keep it; without, the average of the weights is evaluated with training's statistics.")

    rules = (
        refuse("average_statistics", "there is no average; set use_moving_average",
            when=lambda c: c.average_statistics and not c.use_moving_average),
        refuse("moving_average_ramp_steps", "there is no average; set use_moving_average",
            when=lambda c: c.moving_average_ramp_steps and not c.use_moving_average),
    )
