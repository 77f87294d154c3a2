"""`Srn`: a two-step detector with selective refinement, and its released weights. Defaults are the authors'."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from boxwright.config.build import require
from boxwright.config.message import Message
from boxwright.families.shared.criterion import (
    FOCAL_BIAS,
    FOCAL_KERNELS,
    build_classifier_backbone,
    build_coder,
    build_last_step,
    build_level_anchors,
    build_level_candidates,
    build_step,
    level_numbers,
    logits_to_scores,
    settings_or,
)
from boxwright.families.shared.family import Family, check_classes
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.families.shared.source_weights import (
    FileFacts,
    Names,
    SourceWeights,
    map_names,
    unchanged,
    vertical_first,
)
from boxwright.families.srn.message import Srn
from boxwright.families.srn.network import (
    SRN,
    CoarserMaps,
    FirstStepMaps,
    ReceptiveFieldHead,
    SecondStepPyramid,
    rounded_sides,
)
from boxwright.nn.anchor_grids import AnchorGenerator, AnchorGrid, FlexibleGridAnchorGenerator
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.nn.criteria.anchor import CascadeCriterion, Step
from boxwright.nn.criteria.criterion import Criterion
from boxwright.nn.criteria.losses import NO_COLUMN
from boxwright.nn.criteria.target_assigner import ArgmaxMatcher, ClassColumns
from boxwright.nn.detector import Detector
from boxwright.nn.heads.convolutional import HeadOutput
from boxwright.nn.network import Backbone, Network
from boxwright.nn.ops.boxes import (
    AnchorFilter,
    BoxCoder,
    PixelCenterBoxCoder,
    RefinedStart,
    SecondStep,
    StartRule,
    TiledStart,
)
from boxwright.nn.postprocessing.anchor import BestOfLevel, CascadePostprocessor
from boxwright.nn.postprocessing.nms import Nms, PerClass
from boxwright.nn.postprocessing.postprocessor import Postprocessor
from boxwright.nn.preprocessing import Preprocessor
from boxwright.nn.ssd import SSD
from boxwright.types import Categories

_BRANCHES, _LAYERS = 4, 3


def foreign_weights(network: SRN, state: Mapping[str, Tensor], path: Path, facts: FileFacts) -> SourceWeights | None:
    """Return a network's weights from the release's names; None for other names, or a backbone of other layers."""
    del facts
    released = "cls_subnet_pred.weight" in state and "c7_conv.weight" in state
    if not released or not isinstance(network.backbone, TimmBackbone):
        return None
    return map_names(network, _released_names(network.backbone), state, path)


def _released_names(backbone: TimmBackbone) -> Names:
    """Yield our names, the release's, and conversions of tensors; the backbone is timm's resnet50."""
    for name in backbone.body.state_dict():
        yield f"backbone.body.{name}", name, unchanged
    places = {
        **{f"coarser.extra.{number}": f"layer{number + 5}" for number in range(2)},
        **{f"first_maps.project.{number}": f"c{number + 2}_conv" for number in range(6)},
        **{f"pyramid.laterals.{number}": f"c{number + 2}_lateral" for number in range(4)},
        **{f"pyramid.smooth.{number}": f"p{number + 2}_conv" for number in range(4)},
        **{f"pyramid.extra.{number}": f"p{number + 6}_conv" for number in range(2)},
        "head.classes.0": "cls_subnet_pred",
        **_tower("class_tower", "cls_subnet"),
        **_tower("box_tower", "box_subnet"),
    }
    for ours, theirs in places.items():
        yield from ((f"{ours}.{kind}", f"{theirs}.{kind}", unchanged) for kind in ("weight", "bias"))
    for kind in ("weight", "bias"):
        yield f"head.boxes.0.{kind}", f"box_subnet_pred.{kind}", vertical_first


def _tower(ours: str, theirs: str) -> dict[str, str]:
    """Name a tower's convolutions: lists of convolution, activation, enhancement, convolution, activation."""
    inner = {
        f"head.{ours}.1.branches.{branch}.{layer}.0": f"{theirs}.2.branch{branch}.{2 * layer}"
        for branch in range(_BRANCHES)
        for layer in range(_LAYERS)
    }
    outer = {"0.0": "0", "1.merge.0": "2.cated_conv.0", "2.0": "3"}
    return inner | {f"head.{ours}.{mine}": f"{theirs}.{other}" for mine, other in outer.items()}


_LEVELS = (2, 3, 4, 5, 6, 7)
_OF_BACKBONE = (2, 3, 4, 5)
_FIRST_MATCHER, _MATCHER = ArgmaxMatcher(0.7, 0.3), ArgmaxMatcher(0.5, 0.4)
# Thresholds are set per level.
_PRESETS = {
    "RELEASED": (Nms(PerClass(0.4, 750), 0.0, 750), BestOfLevel(6000, 0.05, any_score_below_cells=120)),
    "PAPER": (Nms(PerClass(0.5, 750), 0.0, 750), BestOfLevel(2000, 0.05, any_score_below_cells=120)),
}


def build_srn(config: Srn, categories: Categories | None, image_channels: int = 3) -> Detector:
    """Build an SRN, possibly without some of its parts."""
    columns = ClassColumns(config.num_classes, background=0, unmatched=NO_COLUMN)
    check_classes(config, config.num_classes, columns, categories)
    resizer = build_image_resizer(require(config.image_resizer, config, "image_resizer"), image_channels)
    backbone = build_classifier_backbone(
        require(config.feature_extractor, config, "feature_extractor"), _OF_BACKBONE, resizer.channels
    )
    coder = build_coder(config.box_coder, PixelCenterBoxCoder())
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


def srn_anchors(scales: tuple[float, ...] = (2.0, 2 * math.sqrt(2)), ratio: float = 1.25) -> AnchorGenerator:
    """Return the anchors of levels 2 to 7: multiples of a stride's area, rounded, higher than wide by a ratio."""
    grids = []
    for level in _LEVELS:
        stride = float(2**level)
        height, width = rounded_sides(stride, ratio)
        sizes = tuple(scale * math.sqrt(height * width) for scale in scales)
        middle = (stride / 2, stride / 2)
        grids.append(AnchorGrid(sizes, (width / height,) * len(scales), (stride, stride), middle))
    return FlexibleGridAnchorGenerator(tuple(grids))


def _anchors(config: Srn) -> AnchorGenerator:
    if config.anchor_generator is None:
        return srn_anchors()
    return build_level_anchors(require(config.anchor_generator, config, "anchor_generator"), _LEVELS)


def _network(config: Srn, backbone: Backbone, columns: ClassColumns, coder: BoxCoder) -> Network:
    anchors, depth = _anchors(config), config.depth
    settings = settings_or(config.conv_hyperparams, FOCAL_KERNELS)
    pyramid = SecondStepPyramid(backbone.channels, depth, settings, align_corners=config.align_corners)
    output = HeadOutput(columns.count, class_bias=FOCAL_BIAS)

    one_step = config.two_step_classification is None and config.two_step_regression is None

    def head() -> ReceptiveFieldHead:
        return ReceptiveFieldHead(
            depth,
            anchors.anchors_per_location[0],
            output,
            settings,
            enhance=config.receptive_field_enhancement,
            calls_per_pass=len(anchors.anchors_per_location) * (2 if config.share_head and not one_step else 1),
        )

    if one_step:
        return SSD(backbone, pyramid, head(), anchors)
    coarser = CoarserMaps(backbone.channels, settings)
    return SRN(
        backbone,
        coarser,
        FirstStepMaps(coarser.channels, depth, settings),
        pyramid,
        head(),
        anchors,
        SecondStep(_start(config, coder), _filter(config)),
        first_head=None if config.share_head else head(),
    )


def _filter(config: Srn) -> AnchorFilter | None:
    rule = config.two_step_classification
    if rule is None:
        return None
    to_scores = logits_to_scores(config.first_loss)
    return AnchorFilter(rule.objectness_threshold, to_scores, background=0, levels=_refined_levels(rule))


def _start(config: Srn, coder: BoxCoder) -> StartRule:
    rule = config.two_step_regression
    return TiledStart() if rule is None else RefinedStart(coder, _refined_levels(rule))


def _refined_levels(rule: Message | None) -> tuple[int, ...]:
    return () if rule is None else level_numbers(rule, "levels", _LEVELS) or ()


def _criterion(config: Srn, coder: BoxCoder, columns: ClassColumns) -> Criterion[Any]:
    second = build_step(config.matcher, config.loss, _MATCHER, coder, columns)
    if config.two_step_classification is None and config.two_step_regression is None:
        return second
    first = build_step(config.first_matcher, config.first_loss, _FIRST_MATCHER, coder, columns)
    learns = Step(
        first,
        "first_step",
        class_levels=_refined_levels(config.two_step_classification),
        box_levels=_refined_levels(config.two_step_regression),
    )
    return CascadeCriterion((learns, Step(second)))


def _postprocessor(config: Srn, coder: BoxCoder) -> Postprocessor[Any]:
    nms, candidates = _PRESETS[config.inference_preset.name]
    candidates = build_level_candidates(config.level_candidates, candidates)
    detection = build_last_step(config.post_processing, config.loss, coder, nms, candidates)
    one_step = config.two_step_classification is None and config.two_step_regression is None
    return detection if one_step else CascadePostprocessor(detection)


FAMILY = Family(SRN, build_srn, foreign_weights=foreign_weights)
