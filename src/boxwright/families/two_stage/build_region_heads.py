"""Second and third stages: `MaskRCNNBoxPredictor` and `RfcnBoxPredictor`, the cropping of regions, and `Context`.

`Context` describes the attention of Context R-CNN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from boxwright.config import messages as m
from boxwright.config.build import build_chosen, require
from boxwright.families.shared.hyperparams import CONV_SETTINGS
from boxwright.families.two_stage.build_feature_extractor import CropFeatures, TwoStageExtractor
from boxwright.families.two_stage.context_attention import (
    AttentionBlock,
    ContextAttention,
    LayeredAttention,
    Place,
)
from boxwright.families.two_stage.message import Context, FasterRcnn
from boxwright.families.two_stage.position_sensitive_head import PositionSensitiveStage
from boxwright.families.two_stage.second_stage import (
    BoxClassifier,
    BoxClassifierHead,
    CornerCrop,
    FinalOutputs,
    RegionCrop,
    RoiAlign,
    SecondStage,
)
from boxwright.families.two_stage.third_stage import (
    MaskHead,
    MaskPredictor,
    deconvolving_layers,
    depth_between,
    resizing_layers,
    upsampling_layers,
)
from boxwright.nn.batch_norm import BatchNormSettings, make_norm
from boxwright.nn.layers import ConvSettings, Dense, KernelRule, make_activation
from boxwright.nn.ops.roi import Pool
from boxwright.types import PaddedDetections, TwoStagePredictions

# Fixed in both of TF's libraries.
_NORM = BatchNormSettings(decay=0.97, epsilon=0.001)


def build_context_attention(
    config: Context, extractor: TwoStageExtractor, crop: RegionCrop, channels: int, version: int
) -> tuple[ContextAttention, RegionCrop]:
    """Build the attention of a second stage, and return it with the crop that it needs.

    Args:
        channels: Of the box classifier's features.
        version: TensorFlow's, whose blocks and projections differ.
    """
    place: Place = "crops" if config.attention_position.name == "POST_RPN" else "features"
    every = 1
    if place == "crops":
        channels = extractor.channels[0]
        if isinstance(crop, CornerCrop):  # attention reads all cells, including those that the second stage skips
            every, crop = crop.pool.every, replace(crop, pool=replace(crop.pool, every=1))

    def project(inputs: int, outputs: int) -> nn.Module:
        # Keras's dense layer keeps its bias beside the normalization's; TF-Slim's does not.
        dense = KernelRule().apply(Dense(inputs, outputs, bias=version == 2))
        return nn.Sequential(dense, make_norm(outputs, _NORM), make_activation("RELU_6"))

    def block(length: int) -> AttentionBlock:
        width, temperature = config.attention_bottleneck_dimension, config.attention_temperature
        return AttentionBlock(project, channels, length, width, temperature)

    attend: AttentionBlock | LayeredAttention
    if version == 1:
        itself = block(channels) if config.use_self_attention else None
        heads = config.num_attention_heads
        count = heads * config.num_attention_layers if config.use_long_term_attention else 0
        blocks = [block(config.context_feature_length) for _ in range(count)]
        attend = LayeredAttention(itself, blocks, heads, in_sequence=config.self_attention_in_sequence)
    else:
        attend = block(config.context_feature_length)
    length, most = config.context_feature_length, config.max_num_context_features
    return ContextAttention(attend, place, length, most, every), crop


@dataclass(frozen=True)
class BuiltSecondStage:
    """A second stage, and its module that processes crops."""

    stage: SecondStage
    features: CropFeatures


def build_second_stage(config: FasterRcnn, extractor: TwoStageExtractor, version: int) -> BuiltSecondStage:
    """Build the second stage."""
    predictor = require(config.second_stage_box_predictor, config, "second_stage_box_predictor")
    return build_chosen(predictor, "box_predictor_oneof", _STAGES, config, extractor, version)


def _crop(config: FasterRcnn, extractor: TwoStageExtractor) -> tuple[RegionCrop, int]:
    """Return the crop of proposals, and its side before striding."""
    size = config.initial_crop_size
    if config.roi_align is not None:
        align = config.roi_align
        return RoiAlign(size, align.samples, align.aligned, align.num_levels, extractor.finest_level), size
    kernel, stride = config.maxpool_kernel_size, config.maxpool_stride
    pool = Pool(kernel, stride)
    every = replace(pool, every=2 if extractor.strided else 1)
    return CornerCrop(size, every, config.use_matmul_crop_and_resize), pool.size(size)


def build_final_outputs(
    config: FasterRcnn, stage: SecondStage, detect: Callable[[TwoStagePredictions, Tensor], PaddedDetections]
) -> FinalOutputs | None:
    """Return the additional outputs of detections, None for none; `detect` selects the detections."""
    if not (config.output_final_box_features or config.output_final_box_rpn_features):
        return None
    crop: RegionCrop | None = None
    if config.output_final_box_rpn_features and isinstance(stage, BoxClassifier):
        crop = stage.crop
        if isinstance(crop, CornerCrop):  # all cells, including those that the second stage skips
            crop = replace(crop, pool=replace(crop.pool, every=1))
    return FinalOutputs(config.output_final_box_features, crop, detect)


def _mask_rcnn(
    predictor: m.MaskRCNNBoxPredictor, config: FasterRcnn, extractor: TwoStageExtractor, version: int
) -> BuiltSecondStage:
    crop, side = _crop(config, extractor)
    features = extractor.crop_features(side)
    settings = CONV_SETTINGS[version](predictor.fc_hyperparams or m.Hyperparams())
    head = BoxClassifierHead(
        features.channels,
        config.num_classes,
        share_boxes=predictor.share_box_across_classes,
        dropout=1 - predictor.dropout_keep_probability if predictor.use_dropout else 0.0,
        # TF2's dense layers use only the normalization of fc_hyperparams.
        rule=settings.kernel if version == 1 or extractor.is_ours else KernelRule(),
        norm=settings.norm,
    )
    attention = None
    if config.context_config is not None:
        attention, crop = build_context_attention(config.context_config, extractor, crop, features.channels, version)
    return BuiltSecondStage(BoxClassifier(crop, features.module, head, attention), features)


def _rfcn(
    predictor: m.RfcnBoxPredictor, config: FasterRcnn, extractor: TwoStageExtractor, version: int
) -> BuiltSecondStage:
    bins = (predictor.num_spatial_bins_height, predictor.num_spatial_bins_width)
    crop = (predictor.crop_height, predictor.crop_width)
    features = extractor.crop_features(0)
    settings = CONV_SETTINGS[version](predictor.conv_hyperparams or m.Hyperparams())
    stage = PositionSensitiveStage(
        features.module, features.channels, config.num_classes, predictor.depth, settings, bins=bins, crop=crop
    )
    return BuiltSecondStage(stage, features)


_STAGES: dict[str, Callable[..., BuiltSecondStage]] = {
    "mask_rcnn_box_predictor": _mask_rcnn,
    "rfcn_box_predictor": _rfcn,
}


@dataclass(frozen=True)
class MaskRequest:
    """The parameters of a mask predictor from other stages.

    Attributes:
        detect: Selects the detections, given the true sizes.
        most_positives: The maximum of positive proposals per image.
    """

    num_classes: int
    version: int
    detect: Callable[[TwoStagePredictions, Tensor], PaddedDetections]
    most_positives: int


def build_mask_predictor(
    config: m.MaskRCNNBoxPredictor, second: BuiltSecondStage, extractor: TwoStageExtractor, request: MaskRequest
) -> MaskPredictor:
    """Build the third stage.

    Args:
        second: The second stage, whose features it shares unless it crops separately.
    """
    hyperparams = require(config.conv_hyperparams, config, "conv_hyperparams")
    settings = CONV_SETTINGS[request.version](hyperparams)
    crop: RegionCrop | None = None
    channels, side = second.features.channels, second.features.side
    if config.mask_crop_size:
        crop = RoiAlign(config.mask_crop_size, aligned=_aligned(second.stage), finest=extractor.finest_level)
        channels, side = extractor.channels[0], config.mask_crop_size
    depth = config.mask_prediction_conv_depth or depth_between(channels, request.num_classes)
    layers, width = _mask_layers(config, channels, depth, side, settings)
    columns = 1 if config.masks_are_class_agnostic else request.num_classes
    head = MaskHead(layers, width, columns, settings.kernel, kernel_size=1 if config.deconvolve_masks else 3)
    return MaskPredictor(head, crop, request.detect, request.most_positives)


def _aligned(stage: SecondStage) -> bool:
    """Return whether the mask head's own crops are aligned: as the box classifier's, if it uses RoIAlign."""
    crop = stage.crop if isinstance(stage, BoxClassifier) else None
    return not isinstance(crop, RoiAlign) or crop.aligned


def _mask_layers(
    config: m.MaskRCNNBoxPredictor, channels: int, depth: int, side: int, settings: ConvSettings
) -> tuple[nn.Sequential, int]:
    """Return the layers before the last convolution, and their channels."""
    size, count = (config.mask_height, config.mask_width), config.mask_prediction_num_conv_layers
    if config.deconvolve_masks:
        if config.convolve_then_upsample_masks or size != (2 * side, 2 * side):
            raise config.refusal(
                "deconvolve_masks",
                f"masks are twice the crop of {side}; set mask_height and "
                f"mask_width to {2 * side}, and not convolve_then_upsample_masks",
            )
        return deconvolving_layers(channels, depth, count, settings), depth
    if not config.convolve_then_upsample_masks:
        return resizing_layers(channels, depth, count - 1, settings, size), depth if count > 1 else channels
    if size[0] % side or size[1] % side:
        raise config.refusal(
            "convolve_then_upsample_masks",
            f"mask_height and mask_width {size} must be "
            f"multiples of the features' side {side} (TensorFlow would make masks of {size[0] // side * side} by "
            f"{size[1] // side * side})",
        )
    return upsampling_layers(channels, depth, count - 1, settings, (size[0] // side, size[1] // side)), depth
