"""`Hyperparams`: initializers, penalties, normalization and activation of convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from boxwright.config import messages as m
from boxwright.config.message import Message
from boxwright.nn.batch_norm import BatchNormSettings, GroupNormSettings
from boxwright.nn.layers import ConvSettings, KernelRule
from boxwright.nn.regularization import Regularizer

Initialize = Callable[[Tensor], object]


def build_conv_settings(config: m.Hyperparams) -> ConvSettings:
    """Build the settings of convolutions outside the backbone.

    As in TF2, kernels of plain depthwise convolutions and the pointwise half of separable ones keep Keras's default
    unless `regularize_depthwise` or a predictor's own switch is set.
    """
    if config.group_norm is not None:
        raise config.refusal(
            "group_norm", "TF2 ignores it, and its layers are not normalized; use batch_norm, or remove it"
        )
    return _conv_settings(config)


def _conv_settings(config: m.Hyperparams) -> ConvSettings:
    rule = _kernel_rule(config)
    return ConvSettings(
        kernel=rule,
        depthwise=rule if config.regularize_depthwise else KernelRule(),
        separable_depthwise=rule,
        norm=_norm(config),
        activation=config.activation.name,
        force_bias=config.force_use_bias,
    )


def build_slim_conv_settings(config: m.Hyperparams) -> ConvSettings:
    """Build the settings of convolutions outside the backbone as in TF1, where they apply to kernels of every kind."""
    rule = _kernel_rule(config)
    return replace(
        _conv_settings(config),
        norm=_norm(config) if config.group_norm is None else _group_norm(config),
        depthwise=rule,
        separable_depthwise=rule,
        separable_pointwise=rule,
    )


# Version of TensorFlow → builder of its settings.
CONV_SETTINGS: dict[int, Callable[[m.Hyperparams], ConvSettings]] = {
    1: build_slim_conv_settings,
    2: build_conv_settings,
}


def _kernel_rule(config: m.Hyperparams) -> KernelRule:
    initializer = config.initializer or m.Initializer()
    chosen = initializer.which("initializer_oneof")
    # TF-Slim's and Keras's default is Glorot's uniform.
    initialize = _INITIALIZERS[chosen](getattr(initializer, chosen)) if chosen else nn.init.xavier_uniform_
    return KernelRule(initialize, build_regularizer(config.regularizer or m.Regularizer()))


def build_regularizer(config: m.Regularizer) -> Regularizer:
    """Return a penalty; one of 0 for an empty message."""
    if config.l1_regularizer is not None:
        return Regularizer(l1=config.l1_regularizer.weight)
    if config.l2_regularizer is not None:
        return Regularizer(l2=config.l2_regularizer.weight)
    return Regularizer()


def _truncated_normal(config: m.TruncatedNormalInitializer) -> Initialize:
    return lambda kernel: nn.init.trunc_normal_(
        kernel, config.mean, config.stddev, config.mean - 2 * config.stddev, config.mean + 2 * config.stddev
    )


def _variance_scaling(config: m.VarianceScalingInitializer) -> Initialize:
    if not config.uniform:
        return variance_scaling(config.factor, config.mode.name)

    def initialize(kernel: Tensor) -> object:
        limit = math.sqrt(3 * config.factor / _fan(kernel, config.mode.name))
        return nn.init.uniform_(kernel, -limit, limit)

    return initialize


def caffe_xavier(kernel: Tensor) -> object:
    """Fill a kernel [out, in, k, k] as Caffe's "xavier" does: uniformly, with a variance of 1 / fan-in."""
    limit = math.sqrt(3 / _fan(kernel, "FAN_IN"))
    return nn.init.uniform_(kernel, -limit, limit)


def variance_scaling(factor: float, mode: str) -> Initialize:
    """Return a truncated normal initializer of variance `factor` over the fan of `mode`: FAN_IN, FAN_OUT or FAN_AVG."""

    def initialize(kernel: Tensor) -> object:
        # Truncation at two deviations reduces the deviation by this factor.
        stddev = math.sqrt(factor / _fan(kernel, mode)) / 0.87962566103423978
        return nn.init.trunc_normal_(kernel, 0.0, stddev, -2 * stddev, 2 * stddev)

    return initialize


def _fan(kernel: Tensor, mode: str) -> float:
    fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(kernel)
    return {"FAN_IN": fan_in, "FAN_OUT": fan_out, "FAN_AVG": (fan_in + fan_out) / 2}[mode]


_KERAS: dict[str, Initialize] = {
    "glorot_uniform": nn.init.xavier_uniform_,
    "glorot_normal": variance_scaling(1.0, "FAN_AVG"),
    "he_normal": variance_scaling(2.0, "FAN_IN"),
    "he_uniform": lambda kernel: nn.init.kaiming_uniform_(kernel, nonlinearity="relu"),
    "lecun_normal": variance_scaling(1.0, "FAN_IN"),
    "random_normal": lambda kernel: nn.init.normal_(kernel, 0.0, 0.05),
    "truncated_normal": lambda kernel: nn.init.trunc_normal_(kernel, 0.0, 0.05, -0.1, 0.1),
    "zeros": nn.init.zeros_,
    "ones": nn.init.ones_,
    "orthogonal": nn.init.orthogonal_,
}


_INITIALIZERS: dict[str, Callable[..., Initialize]] = {
    "truncated_normal_initializer": _truncated_normal,
    "random_normal_initializer": lambda config: lambda kernel: nn.init.normal_(kernel, config.mean, config.stddev),
    "variance_scaling_initializer": _variance_scaling,
    "keras_initializer_by_name": _KERAS.__getitem__,
}


def _group_norm(config: m.Hyperparams) -> GroupNormSettings:
    return GroupNormSettings(refusal=partial(config.refusal, "group_norm"))


def _norm(config: m.Hyperparams) -> BatchNormSettings | None:
    norm: Message | None = config.batch_norm or config.sync_batch_norm
    if not isinstance(norm, m.BatchNorm):
        return None
    return BatchNormSettings(norm.decay, norm.epsilon, norm.center, norm.scale, config.batch_norm is None)
