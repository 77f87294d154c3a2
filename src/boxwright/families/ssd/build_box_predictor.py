"""`BoxPredictor`: the heads of one-stage detectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from boxwright.config import messages as m
from boxwright.config.support import refuse_contradictions
from boxwright.families.shared.choice import build_chosen
from boxwright.families.shared.hyperparams import CONV_SETTINGS
from boxwright.nn.batch_norm import GroupNormSettings
from boxwright.nn.heads.convolutional import ConvolutionalHead, HeadShape
from boxwright.nn.heads.outputs import HeadOutput
from boxwright.nn.heads.weight_shared import TowerShape, WeightSharedHead
from boxwright.nn.layers import KernelRule

Head = ConvolutionalHead | WeightSharedHead


def build_box_predictor(
    config: m.BoxPredictor,
    in_channels: Sequence[int],
    anchors_per_location: Sequence[int],
    columns: int,
    version: int = 2,
) -> Head:
    """Build a head.

    Args:
        anchors_per_location: Anchors at each location of each level.
        version: The TensorFlow version of the message, 1 or 2.
    """
    refuse_contradictions(config)
    if len(in_channels) != len(anchors_per_location):
        raise config.refusal(
            "",
            f"the feature extractor has {len(in_channels)} levels, the anchor generator {len(anchors_per_location)}",
        )
    return build_chosen(config, "box_predictor_oneof", _PREDICTORS, in_channels, anchors_per_location, columns, version)


def _convolutional(
    config: m.ConvolutionalBoxPredictor,
    in_channels: Sequence[int],
    anchors_per_location: Sequence[int],
    columns: int,
    version: int,
) -> Head:
    clip = config.box_encodings_clip_range
    output = HeadOutput(
        columns=columns,
        code_size=config.box_code_size,
        # TF1 omits it for separable convolutions.
        class_bias=0.0 if version == 1 and config.use_depthwise else config.class_prediction_bias_init,
        clip_codes=None if clip is None else (clip.min, clip.max),
        convert_logits=torch.sigmoid if config.apply_sigmoid_to_scores else torch.nn.Identity(),
    )
    shape = HeadShape(
        kernel_size=config.kernel_size,
        use_depthwise=config.use_depthwise,
        layers_before=config.num_layers_before_predictor,
        min_depth=config.min_depth,
        max_depth=config.max_depth,
        dropout=1 - config.dropout_keep_probability if config.use_dropout else 0.0,
    )
    settings = CONV_SETTINGS[version](config.conv_hyperparams or m.Hyperparams())
    return ConvolutionalHead(in_channels, anchors_per_location, output, shape, settings)


def _weight_shared(
    config: m.WeightSharedConvolutionalBoxPredictor,
    in_channels: Sequence[int],
    anchors_per_location: Sequence[int],
    columns: int,
    version: int,
) -> Head:
    if len(set(anchors_per_location)) > 1:
        raise config.refusal("", f"needs the same number of anchors at every level, found {list(anchors_per_location)}")
    clip = config.box_encodings_clip_range
    output = HeadOutput(
        columns=columns,
        code_size=config.box_code_size,
        class_bias=config.class_prediction_bias_init,
        clip_codes=None if clip is None else (clip.min, clip.max),
        convert_logits=torch.sigmoid if config.score_converter.name == "SIGMOID" else torch.nn.Identity(),
    )
    shape = TowerShape(
        depth=config.depth,
        layers=config.num_layers_before_predictor,
        kernel_size=config.kernel_size,
        use_depthwise=config.use_depthwise,
        share_tower=config.share_prediction_tower,
        dropout=1 - config.dropout_keep_probability if config.use_dropout else 0.0,
    )
    settings = CONV_SETTINGS[version](config.conv_hyperparams or m.Hyperparams())
    if version == 1:  # regardless of the configured activation
        # Of all normalizations TF1's predictor knows batch_norm alone; with another its towers have none.
        norm = None if isinstance(settings.norm, GroupNormSettings) else settings.norm
        settings = replace(settings, activation="RELU_6", norm=norm)
        return WeightSharedHead(in_channels, anchors_per_location[0], output, shape, settings, settings)
    default, rule = KernelRule(), settings.kernel
    pointwise = rule if config.apply_conv_hyperparams_pointwise else default
    settings = replace(settings, separable_pointwise=pointwise)
    last = settings
    if not config.apply_conv_hyperparams_to_heads:
        last = replace(settings, separable_depthwise=default, separable_pointwise=default)
    return WeightSharedHead(in_channels, anchors_per_location[0], output, shape, settings, last)


_PREDICTORS: dict[str, Callable[..., Head]] = {
    "convolutional_box_predictor": _convolutional,
    "weight_shared_convolutional_box_predictor": _weight_shared,
}
