"""`AlignDet`: a RetinaNet with box-aligned later steps. Defaults are the release's.

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from boxwright.config import messages as m
from boxwright.config.build import require
from boxwright.families.align_det.message import AlignDet as AlignDetMessage
from boxwright.families.align_det.message import AlignedStep
from boxwright.families.align_det.network import AlignDet, RetinaNetPyramid
from boxwright.families.shared.criterion import (
    FOCAL_BIAS,
    FOCAL_KERNELS,
    build_classifier_backbone,
    build_coder,
    build_last_step,
    build_level_anchors,
    build_level_candidates,
    build_step,
    settings_or,
)
from boxwright.families.shared.family import Family, check_classes
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.nn.anchor_grids import AnchorGenerator, MultiscaleAnchorGenerator
from boxwright.nn.criteria.anchor import AnchorCriterion, CascadeCriterion, Step
from boxwright.nn.criteria.criterion import Criterion
from boxwright.nn.criteria.losses import NO_COLUMN
from boxwright.nn.criteria.target_assigner import (
    IGNORED,
    AnchorTargets,
    ArgmaxMatcher,
    ClassColumns,
    LastLowQualityMatcher,
    TargetAssigner,
)
from boxwright.nn.detector import Detector
from boxwright.nn.heads.aligned import (
    AlignedHead,
    Border,
    BoxSampling,
    GuidedConv,
    LearnedConv,
    RoIAlignConv,
    RoIConv,
    WindowConv,
)
from boxwright.nn.heads.convolutional import HeadOutput, TowerShape, WeightSharedHead
from boxwright.nn.layers import ConvSettings
from boxwright.nn.network import Backbone, Network
from boxwright.nn.ops.boxes import BoxCoder, FasterRcnnBoxCoder, RefinedStart
from boxwright.nn.postprocessing.anchor import BestOfLevel, CascadePostprocessor
from boxwright.nn.postprocessing.nms import Nms, PerClass
from boxwright.nn.postprocessing.postprocessor import Postprocessor
from boxwright.nn.preprocessing import Preprocessor
from boxwright.nn.ssd import SSD
from boxwright.types import Categories, Targets

# In pixels: decoding may leave a box of exactly one pixel a little smaller.
_ROUNDING = 1e-3


def learn_own_box(
    assigner: TargetAssigner, anchors: Tensor, targets: Targets, assigned: AnchorTargets
) -> AnchorTargets:
    """Return targets with the class of an anchor's match, but the box that it overlaps most (as released).

    Boxes less than a pixel wide or high, as left by clipping, are ignored; the release has none.
    """
    # Without a threshold: the box that an anchor overlaps most, whether or not that is the match.
    own = replace(assigner, matcher=ArgmaxMatcher(None), adjust=None)(anchors, targets)
    tiny = ((anchors[..., 2:] - anchors[..., :2]).amin(-1) < 1 - _ROUNDING).expand_as(assigned.match)
    match = torch.where(tiny, IGNORED, assigned.match)
    return replace(
        assigned,
        match=match,
        box_codes=torch.where((match >= 0)[..., None], own.box_codes, 0.0),
        box_weights=assigned.box_weights * ~tiny,
        class_weights=assigned.class_weights * ~tiny[..., None],
    )


_LEVELS = (3, 4, 5, 6, 7)
_OF_BACKBONE = (3, 4, 5)
_FIRST_MATCHER, _MATCHER = LastLowQualityMatcher(0.4, 0.3), LastLowQualityMatcher(0.7, 0.7)
_NMS, _CANDIDATES = Nms(PerClass(0.5, 100), 0.0, 100), BestOfLevel(1000, 0.05, any_score_coarsest=1)
_BORDERS: dict[str, Border] = {"LAST_CELL": "last", "ZERO": "zero"}
_FINEST_KERNEL = 3


def build_align_det(config: AlignDetMessage, categories: Categories | None, image_channels: int = 3) -> Detector:
    """Build an AlignDet, or a RetinaNet without later steps."""
    columns = ClassColumns(config.num_classes, background=0, unmatched=NO_COLUMN)
    check_classes(config, config.num_classes, columns, categories)
    resizer = build_image_resizer(require(config.image_resizer, config, "image_resizer"), image_channels)
    backbone = build_classifier_backbone(
        require(config.feature_extractor, config, "feature_extractor"), _OF_BACKBONE, resizer.channels
    )
    coder = build_coder(config.box_coder, FasterRcnnBoxCoder(1.0, 1.0, 1.0, 1.0))
    network = _network(config, backbone.module, columns, coder)
    network.frozen_statistics = ("",) if config.freeze_batchnorm else ()
    return Detector(
        Preprocessor(resizer, backbone.scaling),
        network,
        _criterion(config, coder, columns),
        _postprocessor(config, coder),
        num_classes=columns.num_classes,
        categories=categories,
    )


def _anchors(config: AlignDetMessage) -> AnchorGenerator:
    if config.anchor_generator is None:
        return MultiscaleAnchorGenerator(_LEVELS[0], _LEVELS[-1], 4 * 2 ** (1 / 3), (1.0,), 1, always_half=True)
    return build_level_anchors(require(config.anchor_generator, config, "anchor_generator"), _LEVELS)


def _network(config: AlignDetMessage, backbone: Backbone, columns: ClassColumns, coder: BoxCoder) -> Network:
    anchors, settings = _anchors(config), settings_or(config.conv_hyperparams, FOCAL_KERNELS)
    neck = RetinaNetPyramid(backbone.channels, config.depth, settings)
    output, count = HeadOutput(columns.count, class_bias=FOCAL_BIAS), anchors.anchors_per_location[0]
    tower = TowerShape(config.depth, config.num_layers_before_predictor)
    head = WeightSharedHead(neck.channels, count, output, tower, settings, settings)
    if not config.step:
        return SSD(backbone, neck, head, anchors)
    plain = ConvSettings(kernel=settings.kernel, norm=None, activation=settings.activation)
    aligned = [_aligned(step, config.depth, output, plain) for step in config.step]
    return AlignDet(backbone, neck, head, aligned, anchors, RefinedStart(coder), anchors_per_location=count)


_SAMPLINGS: dict[str, Callable[[int, int, int, ConvSettings], BoxSampling]] = {
    "WINDOW": WindowConv,
    "LEARNED": LearnedConv,
    "GUIDED": GuidedConv,
    "ROI_ALIGN": RoIAlignConv,
}


def _aligned(config: AlignedStep, channels: int, output: HeadOutput, settings: ConvSettings) -> AlignedHead:
    side = config.kernel_size
    kind = config.sampling.name

    def sampling(kernel_size: int) -> BoxSampling:
        if kind == "ROI_CONV":
            return RoIConv(channels, config.depth, kernel_size, settings, border=_BORDERS[config.border.name])
        return _SAMPLINGS[kind](channels, config.depth, kernel_size, settings)

    sides = (_FINEST_KERNEL, side) if config.ignore_finest else (side,)
    strides = [float(2**level) for level in _LEVELS]
    return AlignedHead([sampling(k) for k in sides], len(_LEVELS), strides, config.depth, output, settings)


def _criterion(config: AlignDetMessage, coder: BoxCoder, columns: ClassColumns) -> Criterion[Any]:
    def build(matcher: m.Matcher | None, loss: m.Loss | None, default: LastLowQualityMatcher) -> AnchorCriterion:
        adjust = learn_own_box if matcher is None else None
        return build_step(matcher, loss or config.loss, default, coder, columns, adjust)

    first = build(config.matcher, config.loss, _FIRST_MATCHER)
    if not config.step:
        return first
    steps = [Step(first, "first_step")]
    for number, step in enumerate(config.step):
        name = "" if number == len(config.step) - 1 else f"step_{number + 2}"
        steps.append(Step(build(step.matcher, step.loss, _MATCHER), name))
    return CascadeCriterion(tuple(steps))


def _postprocessor(config: AlignDetMessage, coder: BoxCoder) -> Postprocessor[Any]:
    candidates = build_level_candidates(config.level_candidates, _CANDIDATES)
    loss = (config.step[-1].loss if config.step else None) or config.loss
    detection = build_last_step(config.post_processing, loss, coder, _NMS, candidates)
    return CascadePostprocessor(detection) if config.step else detection


FAMILY = Family(AlignDet, build_align_det)
