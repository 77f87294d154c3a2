"""Box coders, matchers, and the similarities between boxes that matchers compare.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from __future__ import annotations

from boxwright.config.field import field, number
from boxwright.config.message import Message
from boxwright.config.rules import refuse


class ArgMaxMatcher(Message):
    """Matches each anchor to its most similar groundtruth box, using two similarity thresholds."""

    matched_threshold: float = number(0.5, "(-inf, inf)",
        "An anchor is positive when its best similarity is at least this.")
    unmatched_threshold: float = number(0.5, "(-inf, inf)",
        "An anchor is negative when its best similarity is below this; must not exceed matched_threshold.")
    ignore_thresholds: bool = field(False, "Drop both thresholds: every anchor matches its best groundtruth box.")
    negatives_lower_than_unmatched: bool = field(True,
        "True: below unmatched_threshold is negative, in between ignored; false swaps (needs a gap).")
    force_match_for_each_row: bool = field(False,
        "Also make each groundtruth box's best anchor positive, even below matched_threshold.")
    use_matmul_gather: bool = field(False,
        "Gather matched rows by a one-hot matrix product instead of an index gather.",
        no_effect="the same matches by a matrix product, for TPU")

    rules = (
        refuse("unmatched_threshold", "{unmatched_threshold} is over matched_threshold {matched_threshold}",
            when=lambda c: not c.ignore_thresholds and c.unmatched_threshold > c.matched_threshold),
        refuse("negatives_lower_than_unmatched",
            "false, so the negatives lie between the thresholds, but both are {matched_threshold}",
            when=lambda c: not c.ignore_thresholds and not c.negatives_lower_than_unmatched
            and c.unmatched_threshold == c.matched_threshold),
    )

class BipartiteMatcher(Message):
    """Matches groundtruth boxes and anchors one to one, best similarity first."""

    use_matmul_gather: bool = field(False,
        "Gather matched rows by a one-hot matrix product instead of an index gather.",
        no_effect="the same matches by a matrix product, for TPU")

class BipartiteArgmaxMatcher(Message):
    """Gives each groundtruth box an anchor of its own, then matches by thresholds (an extension of Boxwright)."""

    matched_threshold: float = number(0.5, "[0, 1]",
        "Any other anchor is positive when its best similarity is at least this.")
    unmatched_threshold: float = number(0.5, "[0, 1]",
        "It is negative when its best similarity is below this, and ignored between.")

    rules = (
        refuse("unmatched_threshold", "{unmatched_threshold} is over matched_threshold {matched_threshold}",
            when=lambda c: c.unmatched_threshold > c.matched_threshold),
    )

class Matcher(Message, oneof="matcher_oneof"):
    """Chooses how anchors are assigned to groundtruth boxes; set exactly one."""

    argmax_matcher: ArgMaxMatcher | None = field(None,
        "Give each anchor its most similar groundtruth box, subject to thresholds.")
    bipartite_matcher: BipartiteMatcher | None = field(None,
        "Pair boxes and anchors one to one, greedily by similarity.")
    bipartite_argmax_matcher: BipartiteArgmaxMatcher | None = field(None,
        "Ours: both: one anchor a box first, then thresholds, as SSD's authors.")


class NegSqDistSimilarity(Message):
    """Similarity = minus the squared Euclidean distance between box coordinates; no settings."""

class IouSimilarity(Message):
    """Similarity = intersection area over union area, 0..1; no settings."""

class IoaSimilarity(Message):
    """Similarity = intersection area over the area of the second box, 0..1; no settings."""

class ThresholdedIouSimilarity(Message):
    """Similarity = the score of the first box where IoU exceeds a threshold, else 0."""

    iou_threshold: float = number(0.5, "[0, 1]", "Pairs with IoU above this get the first box's score, the others 0.")

class RegionSimilarityCalculator(Message, oneof="region_similarity"):
    """Chooses the box similarity that the matcher compares; set exactly one."""

    neg_sq_dist_similarity: NegSqDistSimilarity | None = field(None,
        "Negative squared distance between box coordinates.")
    iou_similarity: IouSimilarity | None = field(None, "Intersection over union (IoU).")
    ioa_similarity: IoaSimilarity | None = field(None,
        "Intersection over area: overlap divided by the area of one of the two boxes.")
    thresholded_iou_similarity: ThresholdedIouSimilarity | None = field(None,
        "The first box's score where the IoU exceeds a threshold, otherwise 0.")


class FasterRcnnBoxCoder(Message):
    """Encodes a box as center shift over anchor size and log size ratio, each times a scale."""

    y_scale: float = number(10.0, "(0, inf)", "Multiplier on the encoded center y offset.")
    x_scale: float = number(10.0, "(0, inf)", "Multiplier on the encoded center x offset.")
    height_scale: float = number(5.0, "(0, inf)", "Multiplier on the encoded log height ratio.")
    width_scale: float = number(5.0, "(0, inf)", "Multiplier on the encoded log width ratio.")

class MeanStddevBoxCoder(Message):
    """Encodes a box as its corner differences from the anchor over one standard deviation."""

    stddev: float = number(0.01, "(0, inf)",
        "Standard deviation that divides each corner difference, in the units of the box coordinates.")

class SquareBoxCoder(Message):
    """Encodes a box by center shift and one log side length; decoded boxes are square."""

    y_scale: float = number(10.0, "(0, inf)", "Multiplier on the encoded center y offset.")
    x_scale: float = number(10.0, "(0, inf)", "Multiplier on the encoded center x offset.")
    length_scale: float = number(5.0, "(0, inf)", "Multiplier on the encoded log side length.")

class KeypointBoxCoder(Message):
    """Encodes a box as Faster R-CNN does, plus the offsets of its keypoints from the anchor center."""

    num_keypoints: int = number(0, "[0, 10000]", "Keypoints encoded per box; each adds a y and an x code.")
    y_scale: float = number(10.0, "(0, inf)",
        "Multiplier on encoded y offsets, of the box center and of the keypoints.")
    x_scale: float = number(10.0, "(0, inf)",
        "Multiplier on encoded x offsets, of the box center and of the keypoints.")
    height_scale: float = number(5.0, "(0, inf)", "Multiplier on the encoded log height ratio.")
    width_scale: float = number(5.0, "(0, inf)", "Multiplier on the encoded log width ratio.")

    rules = (
        refuse("num_keypoints", "expected at least 1, found {num_keypoints}", when=lambda c: c.num_keypoints < 1),
    )

class BoxCoder(Message, oneof="box_coder_oneof"):
    """Chooses how boxes are encoded relative to anchors; set exactly one."""

    faster_rcnn_box_coder: FasterRcnnBoxCoder | None = field(None,
        "Encode center shift and log size ratio (the usual SSD and Faster R-CNN choice).")
    mean_stddev_box_coder: MeanStddevBoxCoder | None = field(None,
        "Encode corner differences divided by a fixed standard deviation.")
    square_box_coder: SquareBoxCoder | None = field(None,
        "Encode center shift and a single log side length, for square boxes.")
    keypoint_box_coder: KeypointBoxCoder | None = field(None, "Faster R-CNN encoding extended with keypoint offsets.")


def code_size(config: BoxCoder) -> int:
    """Return how many numbers a box is encoded in."""
    if config.keypoint_box_coder is not None:
        return 4 + 2 * config.keypoint_box_coder.num_keypoints
    return 3 if config.square_box_coder is not None else 4
