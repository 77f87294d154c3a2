"""What SSD's criterion is built of: assignment of targets to anchors, losses, and the parts of two-step detectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from boxwright.config import messages as m
from boxwright.config.build import build_chosen, require
from boxwright.config.message import Message
from boxwright.config.support import refuse_contradictions
from boxwright.families.shared.anchor_generator import build_anchor_generator
from boxwright.families.shared.backbones import BackboneRequest, BuiltBackbone, build_backbone
from boxwright.families.shared.hyperparams import build_conv_settings
from boxwright.families.shared.post_processing import build_postprocessor
from boxwright.nn.anchor_grids import AnchorGenerator
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.nn.batch_norm import BatchNormSettings
from boxwright.nn.criteria.anchor import (
    AnchorCriterion,
    Balance,
    ExpectedSampling,
    ExpectedWeights,
    LossNormalizer,
    ReweightUnmatched,
)
from boxwright.nn.criteria.example_selection import BalancedSampler, HardExampleMiner
from boxwright.nn.criteria.losses import (
    AbsoluteError,
    BootstrappedSigmoid,
    ClassificationLoss,
    Dice,
    GeneralizedIouLoss,
    IouLoss,
    LocalizationLoss,
    PenaltyReducedFocal,
    SigmoidCrossEntropy,
    SigmoidFocal,
    SmoothL1,
    SoftmaxAgainstLogits,
    SoftmaxCrossEntropy,
    SquaredError,
)
from boxwright.nn.criteria.target_assigner import (
    Adjustment,
    ArgmaxMatcher,
    BipartiteArgmaxMatcher,
    BipartiteMatcher,
    ClassColumns,
    Matcher,
    TargetAssigner,
)
from boxwright.nn.layers import ConvSettings, KernelRule
from boxwright.nn.ops.boxes import (
    BoxCoder,
    FasterRcnnBoxCoder,
    KeypointBoxCoder,
    MeanStddevBoxCoder,
    Similarity,
    SquareBoxCoder,
    ThresholdedIou,
    negative_squared_distance,
    pairwise_ioa,
    pairwise_iou,
)
from boxwright.nn.postprocessing.anchor import AnchorPostprocessor, BestOfLevel, ScoreConverter, softmax
from boxwright.nn.postprocessing.nms import Nms
from boxwright.nn.regularization import Regularizer


def build_box_coder(config: m.BoxCoder) -> BoxCoder:
    """Build a box coder."""
    return build_chosen(config, "box_coder_oneof", _BOX_CODERS)


_BOX_CODERS: dict[str, Callable[..., BoxCoder]] = {
    "faster_rcnn_box_coder": lambda config: FasterRcnnBoxCoder(
        config.y_scale, config.x_scale, config.height_scale, config.width_scale
    ),
    "keypoint_box_coder": lambda config: KeypointBoxCoder(
        config.num_keypoints, config.y_scale, config.x_scale, config.height_scale, config.width_scale
    ),
    "mean_stddev_box_coder": lambda config: MeanStddevBoxCoder(config.stddev),
    "square_box_coder": lambda config: SquareBoxCoder(config.y_scale, config.x_scale, config.length_scale),
}


def build_matcher(config: m.Matcher) -> Matcher:
    """Build a matcher."""
    return build_chosen(config, "matcher_oneof", _MATCHERS)


def _argmax(config: m.ArgMaxMatcher) -> Matcher:
    if config.ignore_thresholds:
        return ArgmaxMatcher(None, force_match_for_each_row=config.force_match_for_each_row)
    matched, unmatched = config.matched_threshold, config.unmatched_threshold
    return ArgmaxMatcher(matched, unmatched, config.negatives_lower_than_unmatched, config.force_match_for_each_row)


_MATCHERS: dict[str, Callable[..., Matcher]] = {
    "argmax_matcher": _argmax,
    "bipartite_matcher": lambda _: BipartiteMatcher(),
    "bipartite_argmax_matcher": lambda config: BipartiteArgmaxMatcher(
        config.matched_threshold, config.unmatched_threshold
    ),
}


def build_similarity(config: m.RegionSimilarityCalculator) -> Similarity:
    """Return a function of boxes [B, G, 4] and anchors [A, 4] that returns [B, G, A]."""
    return build_chosen(config, "region_similarity", _SIMILARITIES)


_SIMILARITIES: dict[str, Callable[..., Similarity]] = {
    "iou_similarity": lambda _: pairwise_iou,
    "ioa_similarity": lambda _: pairwise_ioa,
    "neg_sq_dist_similarity": lambda _: negative_squared_distance,
    "thresholded_iou_similarity": lambda config: ThresholdedIou(config.iou_threshold),
}


def build_criterion(
    loss: m.Loss, assigner: TargetAssigner, *, by_num_matches: bool = True, by_code_size: bool = False
) -> AnchorCriterion:
    """Build the criterion of an SSD, or of one step of a multi-step detector.

    Args:
        by_num_matches: Whether losses are divided by the number of matched anchors.
        by_code_size: Whether the box loss is divided by the code's length.
    """
    refuse_contradictions(loss)
    miner, sampler = loss.hard_example_miner, loss.random_example_sampler
    return AnchorCriterion(
        assigner=assigner,
        classification=build_classification_loss(require(loss.classification_loss, loss, "classification_loss")),
        localization=build_localization_loss(require(loss.localization_loss, loss, "localization_loss")),
        normalizer=LossNormalizer(
            classification_weight=loss.classification_weight,
            localization_weight=loss.localization_weight,
            by_num_matches=by_num_matches,
            by_code_size=by_code_size,
        ),
        miner=None
        if miner is None
        else build_hard_example_miner(miner, loss.classification_weight, loss.localization_weight),
        sampler=None if sampler is None else BalancedSampler(sampler.positive_sample_fraction),
        expected=_expected(loss),
    )


def _expected(loss: m.Loss) -> ExpectedWeights | None:
    name = loss.expected_loss_weights.name
    if name == "NONE":
        return None
    balance = Balance(loss.min_num_negative_samples, loss.desired_negative_sampling_ratio)
    return ExpectedSampling(balance) if name == "EXPECTED_SAMPLING" else ReweightUnmatched(balance)


def build_classification_loss(config: m.ClassificationLoss) -> ClassificationLoss:
    """Build a classification loss."""
    return build_chosen(config, "classification_loss", _CLASSIFICATION)


def _focal(config: m.SigmoidFocalClassificationLoss) -> ClassificationLoss:
    return SigmoidFocal(config.gamma, config.alpha if config.has("alpha") else None)


_CLASSIFICATION: dict[str, Callable[[Any], ClassificationLoss]] = {
    "weighted_sigmoid": lambda _: SigmoidCrossEntropy(),
    "weighted_sigmoid_focal": _focal,
    "weighted_softmax": lambda config: SoftmaxCrossEntropy(config.logit_scale),
    "weighted_logits_softmax": lambda config: SoftmaxAgainstLogits(config.logit_scale),
    "bootstrapped_sigmoid": lambda config: BootstrappedSigmoid(config.alpha, config.hard_bootstrap),
    "penalty_reduced_logistic_focal_loss": lambda config: PenaltyReducedFocal(config.alpha, config.beta),
    "weighted_dice_classification_loss": lambda config: Dice(
        config.squared_normalization, config.is_prediction_probability
    ),
}


def build_localization_loss(config: m.LocalizationLoss) -> LocalizationLoss:
    """Build a localization loss."""
    return build_chosen(config, "localization_loss", _LOCALIZATION)


_LOCALIZATION: dict[str, Callable[[Any], LocalizationLoss]] = {
    "weighted_smooth_l1": lambda config: SmoothL1(config.delta),
    "weighted_l2": lambda _: SquaredError(),
    "weighted_iou": lambda _: IouLoss(),
    "weighted_giou": lambda _: GeneralizedIouLoss(),
    "l1_localization_loss": lambda _: AbsoluteError(),
}


def build_hard_example_miner(
    config: m.HardExampleMiner, classification_weight: float, localization_weight: float
) -> HardExampleMiner:
    """Build a miner; the weights are those of `loss_type: BOTH`."""
    shares = {
        "BOTH": (classification_weight, localization_weight),
        "CLASSIFICATION": (1.0, 0.0),
        "LOCALIZATION": (0.0, 1.0),
    }
    classification_share, localization_share = shares[config.loss_type.name]
    return HardExampleMiner(
        num_hard_examples=config.num_hard_examples if config.num_hard_examples > 0 else None,
        iou_threshold=config.iou_threshold,
        classification_share=classification_share,
        localization_share=localization_share,
        max_negatives_per_positive=config.max_negatives_per_positive if config.max_negatives_per_positive > 0 else None,
        min_negatives_per_image=config.min_negatives_per_image,
    )


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
    adjust: Adjustment | None = None,
) -> AnchorCriterion:
    """Build the criterion of one step.

    Args:
        matcher: The message, or None for the default.
        adjust: What becomes of the targets that anchors are assigned; None leaves them.
    """
    rule = default if matcher is None else build_matcher(matcher)
    return build_criterion(loss, TargetAssigner(columns, rule, coder, adjust=adjust))


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


def build_last_step(
    config: m.PostProcessing | None, loss: m.Loss, coder: BoxCoder, nms: Nms, candidates: BestOfLevel
) -> AnchorPostprocessor:
    """Return the postprocessor of a last step without background: the message's, or else with this suppression."""
    if config is None:
        return AnchorPostprocessor(coder, logits_to_scores(loss), nms, 0, candidates=candidates)
    plain = build_postprocessor(config, coder, 0)
    return AnchorPostprocessor(coder, plain.score_converter, plain.nms, 0, candidates=candidates)


def level_numbers(config: Message, field: str, levels: Sequence[int]) -> tuple[int, ...] | None:
    """Return the indices, from the finest, of the levels listed in a field by power of 2; None if it is empty."""
    listed: list[int] = getattr(config, field)
    unknown = [level for level in listed if level not in levels]
    if unknown:
        raise config.refusal(field, f"there is no level {unknown[0]}; there are {levels[0]} to {levels[-1]}")
    return tuple(sorted(levels.index(level) for level in listed)) if listed else None
