"""Matchers.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Bool, Float, Message


class ArgMaxMatcher(Message):
    """Matches each anchor to its most similar groundtruth box, using two similarity thresholds."""

    proto_name: ClassVar[str] = "ArgMaxMatcher"

    matched_threshold: Float = Field(
        0.5, allow_inf_nan=False, description="An anchor is positive when its best similarity is at least this."
    )
    unmatched_threshold: Float = Field(
        0.5,
        allow_inf_nan=False,
        description="An anchor is negative when its best similarity is below this; must not exceed matched_threshold.",
    )
    ignore_thresholds: Bool = Field(
        False, description="Drop both thresholds: every anchor matches its best groundtruth box."
    )
    negatives_lower_than_unmatched: Bool = Field(
        True, description="True: below unmatched_threshold is negative, in between ignored; false swaps (needs a gap)."
    )
    force_match_for_each_row: Bool = Field(
        False, description="Also make each groundtruth box's best anchor positive, even below matched_threshold."
    )
    use_matmul_gather: Bool = Field(
        False,
        no_effect="the same matches by a matrix product, for TPU",
        description="Gather matched rows by a one-hot matrix product instead of an index gather.",
    )


class BipartiteMatcher(Message):
    """Matches groundtruth boxes and anchors one to one, best similarity first."""

    proto_name: ClassVar[str] = "BipartiteMatcher"

    use_matmul_gather: Bool = Field(
        False,
        no_effect="the same matches by a matrix product, for TPU",
        description="Gather matched rows by a one-hot matrix product instead of an index gather.",
    )


class BipartiteArgmaxMatcher(Message):
    """Gives each groundtruth box an anchor of its own, then matches by thresholds (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "BipartiteArgmaxMatcher"

    matched_threshold: Float = Field(
        0.5, ge=0, le=1, description="Any other anchor is positive when its best similarity is at least this."
    )
    unmatched_threshold: Float = Field(
        0.5, ge=0, le=1, description="It is negative when its best similarity is below this, and ignored between."
    )


class Matcher(Message):
    """Chooses how anchors are assigned to groundtruth boxes; set exactly one."""

    proto_name: ClassVar[str] = "Matcher"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "matcher_oneof": ("argmax_matcher", "bipartite_matcher", "bipartite_argmax_matcher")
    }

    argmax_matcher: ArgMaxMatcher | None = Field(
        None, description="Give each anchor its most similar groundtruth box, subject to thresholds."
    )
    bipartite_matcher: BipartiteMatcher | None = Field(
        None, description="Pair boxes and anchors one to one, greedily by similarity."
    )
    bipartite_argmax_matcher: BipartiteArgmaxMatcher | None = Field(
        None, description="Both: one anchor a box first, then thresholds, as SSD's authors (an extension of Boxwright)."
    )
