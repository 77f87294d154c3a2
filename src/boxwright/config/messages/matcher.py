"""Matchers.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

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
