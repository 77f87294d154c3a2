"""Convolutions: regularizers, initializers, activation, normalization.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Bool, Enum, Float, Message, String


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

    proto_name: ClassVar[str] = "L1Regularizer"

    weight: Float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Multiplier on the sum of absolute weights; 0 disables it."
    )


class L2Regularizer(Message):
    """L2 penalty on layer weights."""

    proto_name: ClassVar[str] = "L2Regularizer"

    weight: Float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Multiplier on half the sum of squared weights; 0 disables it."
    )


class Regularizer(Message):
    """Penalty on layer weights; set one field or none."""

    proto_name: ClassVar[str] = "Regularizer"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {"regularizer_oneof": ("l1_regularizer", "l2_regularizer")}

    l1_regularizer: L1Regularizer | None = Field(None, description="Penalize the sum of absolute weights.")
    l2_regularizer: L2Regularizer | None = Field(
        None, description="Penalize the sum of squared weights (weight decay)."
    )


class TruncatedNormalInitializer(Message):
    """Starts weights from a normal distribution cut at two standard deviations."""

    proto_name: ClassVar[str] = "TruncatedNormalInitializer"

    mean: Float = Field(0.0, allow_inf_nan=False, description="Mean of the starting weights.")
    stddev: Float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Standard deviation of the starting weights, before cutting."
    )


class VarianceScalingInitializer(Message):
    """Starts weights with variance factor / n, n being set by the layer size."""

    proto_name: ClassVar[str] = "VarianceScalingInitializer"

    factor: Float = Field(
        2.0,
        allow_inf_nan=False,
        gt=0,
        description="Numerator of the weight variance; 2 with FAN_IN gives He initialization.",
    )
    uniform: Bool = Field(False, description="Draw from a uniform distribution instead of a truncated normal one.")
    mode: VarianceScalingInitializerMode = Field(
        VarianceScalingInitializerMode.FAN_IN,
        description="What n counts: inputs (FAN_IN), outputs (FAN_OUT) or their mean (FAN_AVG).",
    )


class RandomNormalInitializer(Message):
    """Starts weights from a normal distribution."""

    proto_name: ClassVar[str] = "RandomNormalInitializer"

    mean: Float = Field(0.0, allow_inf_nan=False, description="Mean of the starting weights.")
    stddev: Float = Field(1.0, ge=0, allow_inf_nan=False, description="Standard deviation of the starting weights.")


class Initializer(Message):
    """How layer weights start; set one field."""

    proto_name: ClassVar[str] = "Initializer"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "initializer_oneof": (
            "truncated_normal_initializer",
            "variance_scaling_initializer",
            "random_normal_initializer",
            "keras_initializer_by_name",
        )
    }

    truncated_normal_initializer: TruncatedNormalInitializer | None = Field(
        None, description="Normal distribution with values beyond two standard deviations redrawn."
    )
    variance_scaling_initializer: VarianceScalingInitializer | None = Field(
        None, description="Random weights whose spread follows the layer size (He, Xavier and similar)."
    )
    random_normal_initializer: RandomNormalInitializer | None = Field(None, description="Plain normal distribution.")
    keras_initializer_by_name: String = Field(
        "", description="Name of a built-in Keras initializer, e.g. he_normal; TF2 models only."
    )


class BatchNorm(Message):
    """Batch normalization settings."""

    proto_name: ClassVar[str] = "BatchNorm"

    decay: Float = Field(
        0.999,
        ge=0,
        le=1,
        description="Share of the old value kept at each update of the running mean and variance; just below 1.",
    )
    center: Bool = Field(True, description="Learn an offset (beta) added after normalizing.")
    scale: Bool = Field(False, description="Learn a factor (gamma) applied after normalizing.")
    epsilon: Float = Field(
        0.001, ge=0, allow_inf_nan=False, description="Small number added to the variance to avoid division by zero."
    )
    train: Bool = Field(
        True,
        no_effect="TF2 does not read it; freeze_batchnorm is what freezes",
        description="Update the running statistics in training; false uses the stored ones.",
    )


class GroupNorm(Message):
    """Group normalization with default settings; has no fields."""

    proto_name: ClassVar[str] = "GroupNorm"


class Hyperparams(Message):
    """Settings of a group of convolution or dense layers."""

    proto_name: ClassVar[str] = "Hyperparams"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {"normalizer_oneof": ("batch_norm", "sync_batch_norm", "group_norm")}

    op: HyperparamsOp = Field(
        HyperparamsOp.CONV,
        no_effect="only TF-Slim's layers read it",
        description="Layer type the settings apply to: CONV or FC.",
    )
    regularizer: Regularizer | None = Field(None, description="Penalty on the layer weights, added to the loss.")
    initializer: Initializer | None = Field(None, description="How the layer weights start.")
    activation: HyperparamsActivation = Field(
        HyperparamsActivation.RELU, description="Activation function applied after each layer; NONE for linear."
    )
    batch_norm: BatchNorm | None = Field(
        None,
        description="Put batch normalization after each layer; no normalization if all three norm fields are unset.",
    )
    sync_batch_norm: BatchNorm | None = Field(
        None, description="As batch_norm, with statistics shared across all replicas."
    )
    group_norm: GroupNorm | None = Field(
        None, refused="use batch_norm", description="Put group normalization after each layer."
    )
    regularize_depthwise: Bool = Field(False, description="Also apply the regularizer to depthwise kernels.")
    force_use_bias: Bool = Field(
        False, description="Keep a bias in layers followed by normalization, which normally have none."
    )
