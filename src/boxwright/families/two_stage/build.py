"""`FasterRcnn`: region proposals, a box classifier, masks and their criteria, and torchvision's weights for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from boxwright.config import messages as m
from boxwright.config.build import require
from boxwright.families.shared.anchor_generator import build_anchor_generator
from boxwright.families.shared.criterion import (
    build_classification_loss,
    build_coder,
    build_hard_example_miner,
    build_localization_loss,
)
from boxwright.families.shared.family import Family, check_classes
from boxwright.families.shared.hyperparams import CONV_SETTINGS
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.families.shared.post_processing import build_nms, build_score_converter
from boxwright.families.shared.source_weights import (
    FileFacts,
    Names,
    SourceWeights,
    map_names,
    unchanged,
    vertical_first,
)
from boxwright.families.two_stage import tf1_names, tf2_names
from boxwright.families.two_stage.build_feature_extractor import (
    TwoStageExtractor,
    build_two_stage_extractor,
)
from boxwright.families.two_stage.build_region_heads import (
    MaskRequest,
    build_final_outputs,
    build_mask_predictor,
    build_second_stage,
)
from boxwright.families.two_stage.criterion import (
    BoxClassifierCriterion,
    MaskCriterion,
    ProposalCriterion,
    TwoStageCriterion,
)
from boxwright.families.two_stage.message import FasterRcnn
from boxwright.families.two_stage.network import (
    Crossing,
    FasterRCNN,
    LevelProposals,
    Propose,
    RegionProposalHead,
    RegionProposalNetwork,
    RegionProposals,
    RegionSampler,
)
from boxwright.families.two_stage.postprocessor import ProposalPostprocessor, TwoStagePostprocessor
from boxwright.families.two_stage.second_stage import FinalOutputs, SecondStage
from boxwright.families.two_stage.third_stage import MaskPredictor
from boxwright.nn.anchor_grids import AnchorGenerator, MultiscaleAnchorGenerator
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.nn.criteria.example_selection import HardExampleMiner, MinibatchSampler
from boxwright.nn.criteria.losses import LocalizationLoss, SmoothL1, SoftmaxCrossEntropy
from boxwright.nn.criteria.target_assigner import (
    ArgmaxMatcher,
    ClassColumns,
    Matcher,
    OwnLowQualityMatcher,
    TargetAssigner,
)
from boxwright.nn.detector import Detector
from boxwright.nn.heads.convolutional import (
    AnchorHead,
    ConvolutionalHead,
    HeadOutput,
    HeadShape,
    TowerShape,
    WeightSharedHead,
)
from boxwright.nn.layers import conv_norm_act
from boxwright.nn.ops.boxes import BoxCoder, FasterRcnnBoxCoder
from boxwright.nn.postprocessing.nms import ClassAgnostic, Nms, PerClass
from boxwright.nn.preprocessing import Preprocessor
from boxwright.types import Categories

_OBJECT = ClassColumns(num_classes=1)
_CROP_SIDE = 7  # of torchvision's regions


def build_faster_rcnn(config: FasterRcnn, categories: Categories | None, image_channels: int = 3) -> Detector:
    """Build a Faster or Mask R-CNN."""
    columns = ClassColumns(config.num_classes)
    check_classes(config, config.num_classes, columns, categories)
    if config.number_of_stages > 1:  # before the first stage is built
        require(config.second_stage_box_predictor, config, "second_stage_box_predictor")
    resizer = build_image_resizer(require(config.image_resizer, config, "image_resizer"), image_channels)
    extraction = require(config.feature_extractor, config, "feature_extractor")
    extractor = build_two_stage_extractor(extraction, resizer.channels)
    first_coder = build_coder(config.first_stage_box_coder, FasterRcnnBoxCoder())
    rpn = _first_stage(config, extractor, _proposals(config, first_coder))
    second = _second_stage(config, extractor, columns) if config.number_of_stages > 1 else None
    network = FasterRCNN(
        extractor.backbone,
        extractor.neck,
        rpn,
        None if second is None else second.stage,
        None if second is None else second.masks,
        sample=None if second is None else second.sample,
        final=None if second is None else second.final,
        pad_to_multiple=extractor.pad_to_multiple,
    )
    if not extraction.batch_norm_trainable:
        frozen = ("backbone", "neck", *(("second.features",) if second is not None else ()))
        network.frozen_statistics = tuple(part for part in frozen if part not in extractor.always_normalizes)
    return Detector(
        Preprocessor(resizer, extractor.scaling, scale_padding=True),
        network,
        TwoStageCriterion(
            _first_criterion(config, first_coder),
            None if second is None else second.criterion,
            None if second is None else second.mask_criterion,
        ),
        ProposalPostprocessor(first_coder) if second is None else second.postprocessor,
        num_classes=config.num_classes,
        categories=categories,
    )


def check_sampling(config: FasterRcnn, reader: m.InputReader) -> None:
    """Raise if more proposals are to be sampled than there are, as TF does in training."""
    del reader
    levels = config.level_proposals
    most = config.first_stage_max_proposals if levels is None else levels.max_proposals_in_training
    if config.number_of_stages > 1 and config.second_stage_batch_size > most and config.hard_example_miner is None:
        raise config.refusal(
            "second_stage_batch_size",
            f"{config.second_stage_batch_size} proposals per image are to be sampled, "
            f"but there are at most {most}; lower it, or raise first_stage_max_proposals",
        )


def _first_stage(config: FasterRcnn, extractor: TwoStageExtractor, propose: Propose) -> RegionProposalNetwork:
    anchors = _anchors(config, extractor)
    version = require(config.feature_extractor, config, "feature_extractor").version
    hyperparams = require(
        config.first_stage_box_predictor_conv_hyperparams, config, "first_stage_box_predictor_conv_hyperparams"
    )
    settings = replace(CONV_SETTINGS[version](hyperparams), activation=config.first_stage_activation.name)
    depth, levels = config.first_stage_box_predictor_depth, len(extractor.channels)
    convolve = conv_norm_act(
        extractor.channels[0],
        depth,
        config.first_stage_box_predictor_kernel_size,
        settings,
        dilation=config.first_stage_atrous_rate,
    )
    output, plain = HeadOutput(columns=2), replace(settings, norm=None, activation="NONE")
    predict: AnchorHead
    if config.first_stage_share_predictor:
        shape = TowerShape(depth=depth, kernel_size=1)
        predict = WeightSharedHead([depth] * levels, anchors.anchors_per_location[0], output, shape, plain, plain)
    else:
        predict = ConvolutionalHead([depth] * levels, anchors.anchors_per_location, output, HeadShape(), plain)
    crossing: Crossing = "clip" if config.clip_anchors_to_image else "prune"
    if config.first_stage_keep_crossing_anchors:
        crossing = "keep"
    return RegionProposalNetwork(RegionProposalHead(convolve, predict, levels), anchors, crossing, propose)


def _anchors(config: FasterRcnn, extractor: TwoStageExtractor) -> AnchorGenerator:
    message = require(config.first_stage_anchor_generator, config, "first_stage_anchor_generator")
    anchors, levels = build_anchor_generator(message), len(extractor.channels)
    if isinstance(anchors, MultiscaleAnchorGenerator):
        anchors = replace(anchors, always_half=True)
    if len(anchors.anchors_per_location) != levels:
        raise message.refusal("", f"{len(anchors.anchors_per_location)} levels, but the feature extractor has {levels}")
    return anchors


def _proposals(config: FasterRcnn, coder: BoxCoder) -> Propose:
    threshold, most = config.first_stage_nms_iou_threshold, config.first_stage_max_proposals
    levels = config.level_proposals
    if levels is not None:
        return LevelProposals(
            coder,
            threshold,
            per_level=(levels.per_level_in_training, levels.per_level),
            most=(levels.max_proposals_in_training, most),
            across_levels=levels.across_levels,
            score="logit" if levels.by_logit else "probability",
        )

    def nms(threshold: float) -> Nms:
        if config.use_combined_nms_in_first_stage:
            return Nms(PerClass(threshold, most), config.first_stage_nms_score_threshold, most, outside="keep")
        return Nms(ClassAgnostic(threshold), config.first_stage_nms_score_threshold, most)

    # TF's suppression with static shapes also drops boxes that overlap by exactly the threshold.
    static = math.nextafter(threshold, 0.0) if config.use_static_shapes else threshold
    return RegionProposals(coder, nms(threshold), nms(static))


def _box_loss(config: m.LocalizationLoss | None) -> LocalizationLoss:
    return SmoothL1() if config is None else build_localization_loss(config)


def _first_criterion(config: FasterRcnn, coder: BoxCoder) -> ProposalCriterion:
    matcher: Matcher = ArgmaxMatcher(0.7, 0.3, force_match_for_each_row=True)
    if config.first_stage_low_quality_matches.name == "OWN":
        matcher = OwnLowQualityMatcher(0.7, 0.3)
    return ProposalCriterion(
        TargetAssigner(_OBJECT, matcher, coder),
        MinibatchSampler(config.first_stage_minibatch_size, config.first_stage_positive_balance_fraction),
        SoftmaxCrossEntropy(),
        _box_loss(config.first_stage_localization_loss),
        config.first_stage_objectness_loss_weight,
        config.first_stage_localization_loss_weight,
        config.normalize_by_weights,
    )


@dataclass(frozen=True)
class _LaterStages:
    """The parts of the stages after the first."""

    stage: SecondStage
    masks: MaskPredictor | None
    sample: RegionSampler | None
    criterion: BoxClassifierCriterion
    mask_criterion: MaskCriterion | None
    postprocessor: TwoStagePostprocessor
    final: FinalOutputs | None


def _second_stage(config: FasterRcnn, extractor: TwoStageExtractor, columns: ClassColumns) -> _LaterStages:
    version = require(config.feature_extractor, config, "feature_extractor").version
    predictor = require(config.second_stage_box_predictor, config, "second_stage_box_predictor")
    post = require(config.second_stage_post_processing, config, "second_stage_post_processing")
    nms = require(post.batch_non_max_suppression, post, "batch_non_max_suppression")
    coder = FasterRcnnBoxCoder()
    postprocessor = TwoStagePostprocessor(
        coder, build_score_converter(post), build_nms(nms), config.second_stage_clip_first
    )
    assigner = TargetAssigner(columns, ArgmaxMatcher(0.5, 0.5), coder)
    sampler = MinibatchSampler(config.second_stage_batch_size, config.second_stage_balance_fraction)
    second = build_second_stage(config, extractor, version)
    masks = mask_criterion = None
    if config.number_of_stages == 3 and predictor.mask_rcnn_box_predictor is not None:
        request = MaskRequest(config.num_classes, version, postprocessor.detect, sampler.most_positives)
        masks = build_mask_predictor(predictor.mask_rcnn_box_predictor, second, extractor, request)
        weight = config.second_stage_mask_prediction_loss_weight
        mask_criterion = MaskCriterion(assigner, weight, fade=config.use_matmul_crop_and_resize)
    miner = _miner(config)
    return _LaterStages(
        stage=second.stage,
        masks=masks,
        sample=RegionSampler(assigner, sampler, config.add_groundtruth_boxes) if miner is None else None,
        criterion=BoxClassifierCriterion(
            assigner,
            SoftmaxCrossEntropy()
            if config.second_stage_classification_loss is None
            else build_classification_loss(config.second_stage_classification_loss),
            _box_loss(config.second_stage_localization_loss),
            config.second_stage_classification_loss_weight,
            config.second_stage_localization_loss_weight,
            miner,
            config.normalize_by_weights,
        ),
        mask_criterion=mask_criterion,
        postprocessor=postprocessor,
        final=build_final_outputs(config, second.stage, postprocessor.detect),
    )


def _miner(config: FasterRcnn) -> HardExampleMiner | None:
    if config.hard_example_miner is None:
        return None
    weights = config.second_stage_classification_loss_weight, config.second_stage_localization_loss_weight
    # TF passes it no matches here, so it cannot balance negatives by positives.
    return replace(build_hard_example_miner(config.hard_example_miner, *weights), max_negatives_per_positive=None)


def foreign_weights(
    network: FasterRCNN, state: Mapping[str, Tensor], path: Path, facts: FileFacts
) -> SourceWeights | None:
    """Return a network's weights from torchvision's names; None for other names, or a backbone of other layers."""
    del facts
    backbone = network.backbone
    if "roi_heads.box_predictor.cls_score.weight" not in state or not isinstance(backbone, TimmBackbone):
        return None
    return map_names(network, torchvision_names(network, backbone, state), state, path)


def torchvision_names(network: FasterRCNN, backbone: TimmBackbone, state: Mapping[str, Tensor]) -> Names:
    """Yield our names, torchvision's, and conversions of tensors; layers' names differ between its versions.

    Unlike ours, its heads predict a box and a mask for the background too, its proposals have one logit for an object
    without one for background, and x comes before y.
    """
    for name in backbone.body.state_dict():
        yield f"backbone.body.{name}", f"backbone.body.{name}", unchanged
    for part, theirs in (("laterals", "inner_blocks"), ("smooth", "layer_blocks")):
        # C2 to C5 of a ResNet; the pyramid's coarsest map is pooled and has no weights.
        for level in range(4):
            yield from _kernel_and_bias(f"neck.{part}.{level}", f"backbone.fpn.{theirs}.{level}", state)
    yield from _kernel_and_bias("rpn.head.convolve.0", "rpn.head.conv", state)
    yield from _kernel_and_bias("rpn.head.predict.classes.0", "rpn.head.cls_logits", state, _beside_nothing)
    yield from _kernel_and_bias("rpn.head.predict.boxes.0", "rpn.head.bbox_pred", state, vertical_first)
    yield from _kernel_and_bias("second.features.0", "roi_heads.box_head.fc6", state, _as_window)
    yield from _kernel_and_bias("second.features.3", "roi_heads.box_head.fc7", state, _as_kernel)
    yield from _kernel_and_bias("second.head.classes.0", "roi_heads.box_predictor.cls_score", state, _as_kernel)
    yield from _kernel_and_bias("second.head.boxes.0", "roi_heads.box_predictor.bbox_pred", state, _drop_background)
    if network.masks is None:
        return
    for number in range(4):
        older = f"roi_heads.mask_head.mask_fcn{number + 1}"
        theirs = older if f"{older}.weight" in state else f"roi_heads.mask_head.{number}"
        yield from _kernel_and_bias(f"masks.head.layers.{number}.0", theirs, state)
    yield from _kernel_and_bias("masks.head.layers.4", "roi_heads.mask_predictor.conv5_mask", state)
    yield from _kernel_and_bias(
        "masks.head.predict", "roi_heads.mask_predictor.mask_fcn_logits", state, lambda value: value[1:]
    )


def _kernel_and_bias(
    ours: str, theirs: str, state: Mapping[str, Tensor], change: Callable[[Tensor], Tensor] = unchanged
) -> Names:
    """Yield kernel and bias; newer versions wrap some convolutions once or twice."""
    path = next((path for path in (theirs, f"{theirs}.0", f"{theirs}.0.0") if f"{path}.weight" in state), theirs)
    for kind in ("weight", "bias"):
        yield f"{ours}.{kind}", f"{path}.{kind}", change


def _as_kernel(value: Tensor) -> Tensor:
    return value[:, :, None, None] if value.ndim == 2 else value


def _as_window(value: Tensor) -> Tensor:
    """Convert a dense layer over flattened crops, channel by channel, to a kernel."""
    return value.view(len(value), -1, _CROP_SIDE, _CROP_SIDE) if value.ndim == 2 else value


def _drop_background(value: Tensor) -> Tensor:
    return _as_kernel(vertical_first(value[4:]))


def _beside_nothing(value: Tensor) -> Tensor:
    """Prepend a logit of 0 for each anchor: softmax of both equals the sigmoid of the one."""
    return torch.stack([torch.zeros_like(value), value], dim=1).flatten(0, 1)


FAMILY = Family(
    FasterRCNN,
    build_faster_rcnn,
    tf1=tf1_names.FASTER_RCNN_PARTS,
    tf2=tf2_names.FASTER_RCNN_PARTS,
    check_training=check_sampling,
    foreign_weights=foreign_weights,
    learns_in_bfloat16=True,
)
