"""Convolutions: regularizers, initializers, activation, normalization.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import AllowedValues, Enum, field, number
from boxwright.config.message import Message


class HyperparamsOp(Enum):
    """Values of `Hyperparams.Op`."""

    CONV = 1
    FC = 2

class VarianceScalingInitializerMode(Enum):
    """Values of `VarianceScalingInitializer.Mode`."""

    FAN_IN = 0
    FAN_OUT = 1
    FAN_AVG = 2

class HyperparamsActivation(Enum):
    """Values of `Hyperparams.Activation`."""

    NONE = 0
    RELU = 1
    RELU_6 = 2
    SWISH = 3

class L1Regularizer(Message):
    """L1 penalty on layer weights."""

    weight: float = number(1.0, "[0, inf)", "Multiplier on the sum of absolute weights; 0 disables it.")

class L2Regularizer(Message):
    """L2 penalty on layer weights."""

    weight: float = number(1.0, "[0, inf)", "Multiplier on half the sum of squared weights; 0 disables it.")

class Regularizer(Message, oneof="regularizer_oneof"):
    """Penalty on layer weights; set one field or none."""

    l1_regularizer: L1Regularizer | None = field(None, "Penalize the sum of absolute weights.")
    l2_regularizer: L2Regularizer | None = field(None, "Penalize the sum of squared weights (weight decay).")

class TruncatedNormalInitializer(Message):
    """Starts weights from a normal distribution cut at two standard deviations."""

    mean: float = number(0.0, "(-inf, inf)", "Mean of the starting weights.")
    stddev: float = number(1.0, "[0, inf)", "Standard deviation of the starting weights, before cutting.")

class VarianceScalingInitializer(Message):
    """Starts weights with variance factor / n, n being set by the layer size."""

    factor: float = number(2.0, "(0, inf)", "Numerator of the weight variance; 2 with FAN_IN gives He initialization.")
    uniform: bool = field(False, "Draw from a uniform distribution instead of a truncated normal one.")
    mode: VarianceScalingInitializerMode = field(VarianceScalingInitializerMode.FAN_IN,
        "What n counts: inputs (FAN_IN), outputs (FAN_OUT) or their mean (FAN_AVG).")

class RandomNormalInitializer(Message):
    """Starts weights from a normal distribution."""

    mean: float = number(0.0, "(-inf, inf)", "Mean of the starting weights.")
    stddev: float = number(1.0, "[0, inf)", "Standard deviation of the starting weights.")

class Initializer(Message, oneof="initializer_oneof"):
    """How layer weights start; set one field."""

    truncated_normal_initializer: TruncatedNormalInitializer | None = field(None,
        "Normal distribution with values beyond two standard deviations redrawn.")
    variance_scaling_initializer: VarianceScalingInitializer | None = field(None,
        "Random weights whose spread follows the layer size (He, Xavier and similar).")
    random_normal_initializer: RandomNormalInitializer | None = field(None, "Plain normal distribution.")
    keras_initializer_by_name: str = field("", "Name of a built-in Keras initializer, e.g. he_normal; TF2 models only.",
        values=AllowedValues((
            "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "lecun_normal", "ones", "orthogonal",
            "random_normal", "truncated_normal", "zeros")))

class BatchNorm(Message):
    """Batch normalization settings."""

    decay: float = number(0.999, "[0, 1]",
        "Share of the old value kept at each update of the running mean and variance; just below 1.")
    center: bool = field(True, "Learn an offset (beta) added after normalizing.")
    scale: bool = field(False, "Learn a factor (gamma) applied after normalizing.")
    epsilon: float = number(0.001, "[0, inf)", "Small number added to the variance to avoid division by zero.")
    train: bool = field(True,
        "Update the running statistics in training; false uses the stored ones.",
        no_effect="TF2 does not read it; freeze_batchnorm is what freezes")

class GroupNorm(Message):
    """Group normalization: 32 groups, epsilon 1e-6, a learned gain and bias; has no fields."""

class Hyperparams(Message):
    """Settings of a group of convolution or dense layers."""

    op: HyperparamsOp = field(HyperparamsOp.CONV,
        "Layer type the settings apply to: CONV or FC.", no_effect="only TF-Slim's layers read it")
    regularizer: Regularizer | None = field(None, "Penalty on the layer weights, added to the loss.")
    initializer: Initializer | None = field(None, "How the layer weights start.")
    activation: HyperparamsActivation = field(HyperparamsActivation.RELU,
        "Activation function applied after each layer; NONE for linear.")
    batch_norm: BatchNorm | None = field(None, "Put batch normalization after each layer; no normalization if all "
        "three norm fields are unset.", oneof="normalizer_oneof")
    sync_batch_norm: BatchNorm | None = field(None,
        "As batch_norm, with statistics shared across all replicas.", oneof="normalizer_oneof")
    group_norm: GroupNorm | None = field(None,
        "Put group normalization after each layer.", oneof="normalizer_oneof",
        note="of TF1's extractors, outside the backbone; TF2 ignores it, and it is refused")
    regularize_depthwise: bool = field(False, "Also apply the regularizer to depthwise kernels.")
    force_use_bias: bool = field(False, "Keep a bias in layers followed by normalization, which normally have none.")


def normalizes(config: Hyperparams | None) -> bool:
    """Return whether batch normalization is asked for."""
    return config is not None and (config.batch_norm is not None or config.sync_batch_norm is not None)
