"""Shared parts of the builders of multi-step detectors: backbone, steps, candidates by level."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from boxwright.config import messages as m
from boxwright.config.message import Message
from boxwright.families.shared.anchor_generator import build_anchor_generator
from boxwright.families.shared.backbones import BackboneRequest, BuiltBackbone, build_backbone
from boxwright.families.shared.choice import require
from boxwright.families.shared.hyperparams import build_conv_settings
from boxwright.families.shared.losses import build_criterion
from boxwright.families.shared.post_processing import build_postprocessor
from boxwright.families.shared.target_assigner import build_box_coder, build_matcher
from boxwright.nn.anchor_grids import AnchorGenerator
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.nn.batch_norm import BatchNormSettings
from boxwright.nn.criteria.anchor import AnchorCriterion
from boxwright.nn.criteria.target_assigner import ClassColumns, TargetAssigner
from boxwright.nn.layers import ConvSettings, KernelRule
from boxwright.nn.ops.box_coder import BoxCoder
from boxwright.nn.ops.matcher import Matcher
from boxwright.nn.postprocessing.anchor import AnchorPostprocessor, BestOfLevel, ScoreConverter, softmax
from boxwright.nn.regularization import Regularizer

_KERAS = ConvSettings(norm=BatchNormSettings(decay=0.999))
_RESNET = ConvSettings(norm=BatchNormSettings(decay=0.997, epsilon=1e-5), activation="RELU")
_OWN = {"mobilenet_v2": _KERAS}
# RetinaNet's initialization: kernels of deviation 0.01, and a prior probability of 0.01 for every class.
FOCAL_KERNELS = ConvSettings(
    kernel=KernelRule(lambda kernel: nn.init.normal_(kernel, 0.0, 0.01), Regularizer(l2=1e-4)),
    norm=None,
    activation="RELU",
)
FOCAL_BIAS = -math.log((1 - 0.01) / 0.01)


def settings_or(config: m.Hyperparams | None, default: ConvSettings) -> ConvSettings:
    """Return the convolutions of a message, or the default if it is None."""
    return default if config is None else build_conv_settings(config)


def build_classifier_backbone(
    extraction: m.ClassifierBackbone, levels: Sequence[int], image_channels: int
) -> BuiltBackbone:
    """Build a backbone up to the last level."""
    request = BackboneRequest(extraction, _OWN.get(extraction.type, _RESNET), image_channels)
    built = build_backbone(extraction.type, levels, request)
    if isinstance(built.module, TimmBackbone):  # keeps its own convolutions, except for their regularizer
        built.module.penalize(settings_or(extraction.conv_hyperparams, FOCAL_KERNELS).kernel.regularizer)
    return built


def build_coder(config: m.BoxCoder | None, default: BoxCoder) -> BoxCoder:
    """Return the box coder of a message, or the default if it is None."""
    return default if config is None else build_box_coder(config)


def build_step(
    matcher: m.Matcher | None,
    loss: m.Loss,
    default: Matcher,
    coder: BoxCoder,
    columns: ClassColumns,
) -> AnchorCriterion:
    """Build the criterion of one step.

    Args:
        matcher: The message, or None for the default.
    """
    rule = default if matcher is None else build_matcher(matcher)
    return build_criterion(loss, TargetAssigner(columns, rule, coder))


def logits_to_scores(loss: m.Loss) -> ScoreConverter:
    """Return the score converter that matches a loss: softmax, or a sigmoid of each class."""
    chosen = require(loss.classification_loss, loss, "classification_loss")
    kind = chosen.which("classification_loss") or "weighted_softmax"
    scale = getattr(getattr(chosen, kind), "logit_scale", 1.0)
    return ScoreConverter(softmax if "softmax" in kind else torch.sigmoid, scale)


def build_level_anchors(message: m.AnchorGenerator, levels: Sequence[int]) -> AnchorGenerator:
    """Build the anchors of a model whose heads are shared by all levels."""
    anchors = build_anchor_generator(message)
    counts = anchors.anchors_per_location
    if len(counts) != len(levels) or len(set(counts)) > 1 or not counts[0]:
        wanted = f"as many anchors on each of {len(levels)} levels, {levels[0]} to {levels[-1]}"
        raise message.refusal("", f"expected {wanted}, found {', '.join(map(str, counts))}")
    return anchors


def build_level_candidates(config: m.LevelCandidates | None, default: BestOfLevel) -> BestOfLevel:
    """Return the candidate selection; missing fields are taken from the default."""
    if config is None:
        return default
    return BestOfLevel(
        config.per_level if config.has("per_level") else default.count,
        config.score_threshold if config.has("score_threshold") else default.score_threshold,
        config.any_score_below_cells if config.has("any_score_below_cells") else default.any_score_below_cells,
        config.any_score_coarsest if config.has("any_score_coarsest") else default.any_score_coarsest,
    )


def build_suppression(config: m.PostProcessing, coder: BoxCoder, candidates: BestOfLevel) -> AnchorPostprocessor:
    """Return the postprocessor of a last step without background."""
    plain = build_postprocessor(config, coder, 0)
    return AnchorPostprocessor(coder, plain.score_converter, plain.nms, 0, candidates=candidates)


def level_numbers(config: Message, field: str, levels: Sequence[int]) -> tuple[int, ...] | None:
    """Return the indices, from the finest, of the levels listed in a field by power of 2; None if it is empty."""
    listed: list[int] = getattr(config, field)
    unknown = [level for level in listed if level not in levels]
    if unknown:
        raise config.refusal(field, f"there is no level {unknown[0]}; there are {levels[0]} to {levels[-1]}")
    return tuple(sorted(levels.index(level) for level in listed)) if listed else None
