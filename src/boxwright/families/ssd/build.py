"""`Ssd`: backbone, neck, head (`BoxPredictor`), criterion and postprocessor of a one-stage detector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from boxwright.config import messages as m
from boxwright.config.build import build_chosen, require
from boxwright.config.messages.ssd_feature_extractor import extractor_version
from boxwright.config.support import refuse_contradictions
from boxwright.families.shared.anchor_generator import build_anchor_generator
from boxwright.families.shared.criterion import build_box_coder, build_criterion, build_matcher, build_similarity
from boxwright.families.shared.family import Family, check_classes
from boxwright.families.shared.feature_extractor import build_feature_extractor
from boxwright.families.shared.hyperparams import CONV_SETTINGS
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.families.shared.post_processing import build_postprocessor
from boxwright.families.ssd.message import Ssd
from boxwright.nn.batch_norm import GroupNormSettings
from boxwright.nn.criteria.losses import NO_COLUMN
from boxwright.nn.criteria.target_assigner import ClassColumns, ConfidenceTargets, TargetAssigner
from boxwright.nn.detector import Detector
from boxwright.nn.heads.convolutional import ConvolutionalHead, HeadOutput, HeadShape, TowerShape, WeightSharedHead
from boxwright.nn.layers import KernelRule
from boxwright.nn.preprocessing import Preprocessor
from boxwright.nn.ssd import SSD
from boxwright.nn.tensorflow_names import tf1, tf2
from boxwright.types import Categories

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
        # TF1's predictor knows no normalization but batch_norm; with another its towers have none.
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


def build_ssd(config: Ssd, categories: Categories | None, image_channels: int = 3) -> Detector:
    """Build an SSD."""
    columns = _columns(config)
    check_classes(config, config.num_classes, columns, categories)
    resizer = build_image_resizer(require(config.image_resizer, config, "image_resizer"), image_channels)
    extraction = require(config.feature_extractor, config, "feature_extractor")
    extractor = build_feature_extractor(extraction, image_channels=resizer.channels)
    anchors = build_anchor_generator(require(config.anchor_generator, config, "anchor_generator"))
    head = build_box_predictor(
        require(config.box_predictor, config, "box_predictor"),
        extractor.neck.channels,
        anchors.anchors_per_location,
        columns.count,
        extractor_version(extraction),
    )
    assigner = build_target_assigner(config, columns)
    post_processing = require(config.post_processing, config, "post_processing")
    network = SSD(
        extractor.backbone.module,
        extractor.neck.module,
        head,
        anchors,
        pad_to_multiple=extraction.pad_to_multiple,
    )
    network.frozen_statistics = ("",) if config.freeze_batchnorm else ()
    return Detector(
        Preprocessor(resizer, extractor.backbone.scaling),
        network,
        build_criterion(
            require(config.loss, config, "loss"),
            assigner,
            by_num_matches=config.normalize_loss_by_num_matches,
            by_code_size=config.normalize_loc_loss_by_codesize,
        ),
        build_postprocessor(post_processing, assigner.box_coder, columns.background),
        num_classes=columns.num_classes,
        categories=categories,
    )


def _columns(config: Ssd) -> ClassColumns:
    background = int(config.add_background_class or config.explicit_background_class)
    # An explicit background is included in the number of classes.
    foreground = config.num_classes - int(config.explicit_background_class)
    return ClassColumns(foreground, background, NO_COLUMN if config.encode_background_as_zeros else 0)


def build_target_assigner(config: Ssd, columns: ClassColumns) -> TargetAssigner:
    """Build the assigner of targets to anchors."""
    parts = (
        columns,
        build_matcher(require(config.matcher, config, "matcher")),
        build_box_coder(require(config.box_coder, config, "box_coder")),
        build_similarity(require(config.similarity_calculator, config, "similarity_calculator")),
        config.negative_class_weight,
    )
    adjust = ConfidenceTargets(config.implicit_example_weight) if config.use_confidences_as_targets else None
    return TargetAssigner(*parts, adjust)


FAMILY = Family(SSD, build_ssd, tf1=tf1.SSD_PARTS, tf2=tf2.SSD_PARTS, learns_in_bfloat16=True)
