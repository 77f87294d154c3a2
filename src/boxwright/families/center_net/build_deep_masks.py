"""`DeepMACMaskEstimation`: the mask network, its losses, and what they need."""

from __future__ import annotations

import re

from torch import nn

from boxwright.config.build import require
from boxwright.families.center_net.backbones import single_hourglass
from boxwright.families.center_net.build_feature_extractor import HOURGLASS_NORM, RESNET_NORM, FeatureExtractor
from boxwright.families.center_net.build_tasks import HeadBuilder
from boxwright.families.center_net.consistency_features import ConsistencyFeatures, LabColors, LastFeatures, RandomView
from boxwright.families.center_net.criteria.deep_masks import (
    JITTERS,
    Compare,
    CompareViews,
    DeepMaskTask,
    DeepMaskTerm,
    FromBoxes,
    FromFeatures,
    FromMasks,
    FromPoints,
    FromViews,
    Normalize,
    RegionJitter,
    WarmUp,
    balanced,
    by_direction,
    by_distance,
    divergence_of_views,
    mean_of_pixels,
    overlap_of_views,
    per_foreground_pixel,
    square_error_of_views,
)
from boxwright.families.center_net.deep_mac_message import CenterNetDeepMACMaskEstimation
from boxwright.families.center_net.deep_masks import (
    MASK_RESNETS,
    BoxCrops,
    ConditionalMask,
    DeepMaskPredictor,
    DeepMasks,
    DenseMask,
    Detect,
    HourglassMask,
    LayeredMask,
    MaskExtent,
    ProjectedMask,
    ResNetMask,
    WholeMaps,
    instance_beside_pixels,
    pixels_alone,
)
from boxwright.families.center_net.network import EmbeddingHeads, HeadLayers, MapHead
from boxwright.families.shared.criterion import build_classification_loss

# TF makes these heads with a function whose default is a kernel of one row.
_LAYERS = HeadLayers(kernel_sizes=((1, 3),))


def build_embedding_heads(config: CenterNetDeepMACMaskEstimation, head: HeadBuilder) -> EmbeddingHeads:
    """Build the heads of the embeddings, whose hidden convolution is never separable."""
    instances, pixels = (MapHead(head.channels, out, _LAYERS) for out in (config.dim, config.pixel_embedding_dim))
    return EmbeddingHeads(instances, pixels)


def build_deep_masks(
    config: CenterNetDeepMACMaskEstimation, extractor: FeatureExtractor, detect: Detect
) -> DeepMaskPredictor:
    """Build the prediction of masks."""
    extent: MaskExtent = BoxCrops(config.mask_size)
    if config.predict_full_resolution_masks:
        extent = WholeMaps(config.postprocess_crop_size)
    colors = LabColors(extractor.scaling.scale, extractor.scaling.offset)
    features: dict[str, ConsistencyFeatures] = {
        "CONSISTENCY_DEFAULT_LAB": colors,
        "CONSISTENCY_FEATURE_MAP": LastFeatures(),
    }
    compares = config.predict_full_resolution_masks and config.feature_consistency_loss_weight > 0
    scales = (config.augmented_self_supervision_scale_min, config.augmented_self_supervision_scale_max)
    view = RandomView(
        config.augmented_self_supervision_max_translation, scales, config.augmented_self_supervision_flip_probability
    )
    return DeepMaskPredictor(
        DeepMasks(_network(config), extent, use_xy=config.use_xy),
        detect,
        last_stages=1 if config.use_only_last_stage else extractor.stages,
        learns_masks=config.task_loss_weight > 0,
        features=features[config.feature_consistency_type.name] if compares else None,
        view=view if config.augmented_self_supervision_loss_weight > 0 else None,
    )


def _network(config: CenterNetDeepMACMaskEstimation) -> nn.Module:
    pixels = config.pixel_embedding_dim + 2 * config.use_xy
    if config.network_type == "embedding_projection":
        return ProjectedMask()
    if config.network_type.startswith("cond_inst"):
        return ConditionalMask(pixels, config.num_init_channels, int(config.network_type.removeprefix("cond_inst")))
    in_channels = pixels + config.dim * config.use_instance_embedding
    layers = _layers(config, in_channels)
    return LayeredMask(layers, instance_beside_pixels if config.use_instance_embedding else pixels_alone)


def _layers(config: CenterNetDeepMACMaskEstimation, in_channels: int) -> nn.Module:
    name, width = config.network_type, config.num_init_channels
    if name == "fully_connected":
        return DenseMask(in_channels, width, config.mask_size)
    if name in MASK_RESNETS:
        return ResNetMask(in_channels, width, MASK_RESNETS[name], RESNET_NORM)
    layers = int("".join(re.findall(r"\d", name)))
    stride, shortcut = 1 if name.endswith("_uniform_size") else 2, not name.endswith("_no_shortcut")
    layout = single_hourglass(layers, width)
    return HourglassMask(in_channels, layout, HOURGLASS_NORM, stride=stride, shortcut=shortcut)


def build_deep_mask_task(config: CenterNetDeepMACMaskEstimation) -> DeepMaskTask:
    """Build the task of masks; losses of weight 0 are none."""
    loss = build_classification_loss(require(config.classification_loss, config, "classification_loss"))
    side = None if config.predict_full_resolution_masks else config.mask_size
    allowed = config.allowed_masked_classes_ids
    features = FromFeatures(
        config.feature_consistency_threshold,
        config.feature_consistency_dilation,
        _COMPARISONS[config.feature_consistency_comparison.name],
        WarmUp(config.feature_consistency_warmup_start, config.feature_consistency_warmup_steps),
    )
    boxes = FromBoxes(
        loss, _NORMALIZES[config.box_consistency_loss_normalize.name], side, config.box_consistency_tightness
    )
    views = FromViews(
        _VIEW_COMPARISONS[config.augmented_self_supervision_loss.name],
        WarmUp(config.augmented_self_supervision_warmup_start, config.augmented_self_supervision_warmup_steps),
    )
    terms = (
        DeepMaskTerm(
            "deep_mask_estimation",
            config.task_loss_weight,
            FromMasks(loss, side, config.ignore_per_class_box_overlap),
            tuple(number - 1 for number in allowed) if allowed else None,
        ),
        DeepMaskTerm("deep_mask_box_consistency", config.box_consistency_loss_weight, boxes),
        DeepMaskTerm("deep_mask_feature_consistency", config.feature_consistency_loss_weight, features),
        DeepMaskTerm("deep_mask_augmented_self_supervision", config.augmented_self_supervision_loss_weight, views),
        DeepMaskTerm("deep_mask_pointly_supervised", config.pointly_supervised_keypoint_loss_weight, FromPoints(loss)),
    )
    jitter = RegionJitter(JITTERS[config.jitter_mode.name], config.max_roi_jitter_ratio)
    return DeepMaskTask(
        tuple(term for term in terms if term.weight > 0), jitter if config.max_roi_jitter_ratio > 0 else None
    )


_COMPARISONS: dict[str, Compare] = {
    "COMPARISON_DEFAULT_GAUSSIAN": by_distance,
    "COMPARISON_NORMALIZED_DOTPROD": by_direction,
}
_NORMALIZES: dict[str, Normalize] = {
    "NORMALIZE_AUTO": mean_of_pixels,
    "NORMALIZE_GROUNDTRUTH_COUNT": per_foreground_pixel,
    "NORMALIZE_BALANCED": balanced,
}
_VIEW_COMPARISONS: dict[str, CompareViews] = {
    "LOSS_DICE": overlap_of_views,
    "LOSS_MSE": square_error_of_views,
    "LOSS_KL_DIV": divergence_of_views,
}
