"""`BoxCoder`, `Matcher`, `RegionSimilarityCalculator`: the assignment of targets to anchors."""

from __future__ import annotations

from collections.abc import Callable

from boxwright.config import messages as m
from boxwright.families.shared.choice import build_chosen
from boxwright.nn.ops.box_coder import (
    BoxCoder,
    FasterRcnnBoxCoder,
    KeypointBoxCoder,
    MeanStddevBoxCoder,
    SquareBoxCoder,
)
from boxwright.nn.ops.boxes import Similarity, ThresholdedIou, negative_squared_distance, pairwise_ioa, pairwise_iou
from boxwright.nn.ops.matcher import ArgmaxMatcher, BipartiteArgmaxMatcher, BipartiteMatcher, Matcher


def build_box_coder(config: m.BoxCoder) -> BoxCoder:
    """Build a box coder."""
    return build_chosen(config, "box_coder_oneof", _BOX_CODERS)


def _faster_rcnn(config: m.FasterRcnnBoxCoder) -> FasterRcnnBoxCoder:
    return FasterRcnnBoxCoder(config.y_scale, config.x_scale, config.height_scale, config.width_scale)


def _keypoint(config: m.KeypointBoxCoder) -> BoxCoder:
    return KeypointBoxCoder(
        config.num_keypoints, config.y_scale, config.x_scale, config.height_scale, config.width_scale
    )


def _mean_stddev(config: m.MeanStddevBoxCoder) -> BoxCoder:
    return MeanStddevBoxCoder(config.stddev)


_BOX_CODERS: dict[str, Callable[..., BoxCoder]] = {
    "faster_rcnn_box_coder": _faster_rcnn,
    "keypoint_box_coder": _keypoint,
    "mean_stddev_box_coder": _mean_stddev,
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


def _bipartite_argmax(config: m.BipartiteArgmaxMatcher) -> Matcher:
    matched, unmatched = config.matched_threshold, config.unmatched_threshold
    return BipartiteArgmaxMatcher(matched, unmatched)


_MATCHERS: dict[str, Callable[..., Matcher]] = {
    "argmax_matcher": _argmax,
    "bipartite_matcher": lambda _: BipartiteMatcher(),
    "bipartite_argmax_matcher": _bipartite_argmax,
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
