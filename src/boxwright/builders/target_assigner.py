"""`BoxCoder`, `Matcher`, `RegionSimilarityCalculator`: how anchors get their targets."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from boxwright.builders.choice import build_chosen, require
from boxwright.config import messages as m
from boxwright.criteria.target_assigner import ClassColumns, TargetAssigner
from boxwright.errors import ConfigError
from boxwright.ops.box_coder import FasterRcnnBoxCoder
from boxwright.ops.boxes import pairwise_iou
from boxwright.ops.matcher import ArgmaxMatcher

__all__ = ["build_box_coder", "build_matcher", "build_similarity", "build_target_assigner"]


def build_target_assigner(config: m.Ssd, columns: ClassColumns) -> TargetAssigner:
    """Build the target assigner of an SSD.

    Args:
        config: The SSD's message.
        columns: The class head's columns.

    Returns:
        The assigner.
    """
    return TargetAssigner(
        columns=columns,
        matcher=build_matcher(require(config.matcher, "model.ssd.matcher")),
        box_coder=build_box_coder(require(config.box_coder, "model.ssd.box_coder")),
        similarity=build_similarity(require(config.similarity_calculator, "model.ssd.similarity_calculator")),
        negative_class_weight=config.negative_class_weight,
    )


def build_box_coder(config: m.BoxCoder) -> FasterRcnnBoxCoder:
    """Build a box coder.

    Args:
        config: The message.

    Returns:
        The coder.
    """
    return build_chosen(config, "box_coder_oneof", {"faster_rcnn_box_coder": _faster_rcnn})


def _faster_rcnn(config: m.FasterRcnnBoxCoder) -> FasterRcnnBoxCoder:
    return FasterRcnnBoxCoder(config.y_scale, config.x_scale, config.height_scale, config.width_scale)


def build_matcher(config: m.Matcher) -> ArgmaxMatcher:
    """Build a matcher.

    Args:
        config: The message.

    Returns:
        The matcher.

    Raises:
        ConfigError: For thresholds that contradict each other.
    """
    return build_chosen(config, "matcher_oneof", {"argmax_matcher": _argmax})


def _argmax(config: m.ArgMaxMatcher) -> ArgmaxMatcher:
    if config.ignore_thresholds:
        return ArgmaxMatcher(None, force_match_for_each_row=config.force_match_for_each_row)
    matched, unmatched = config.matched_threshold, config.unmatched_threshold
    if unmatched > matched:
        raise ConfigError(f"argmax_matcher: unmatched_threshold {unmatched} is over matched_threshold {matched}")
    if not config.negatives_lower_than_unmatched and unmatched == matched:
        raise ConfigError(
            "argmax_matcher: negatives_lower_than_unmatched is false, so the negatives lie between the "
            f"thresholds, but both are {matched}"
        )
    return ArgmaxMatcher(matched, unmatched, config.negatives_lower_than_unmatched, config.force_match_for_each_row)


def build_similarity(config: m.RegionSimilarityCalculator) -> Callable[[Tensor, Tensor], Tensor]:
    """Build a similarity between boxes.

    Args:
        config: The message.

    Returns:
        A function of boxes [B, G, 4] and anchors [A, 4] that returns [B, G, A].
    """
    return build_chosen(config, "region_similarity", {"iou_similarity": lambda _: pairwise_iou})
