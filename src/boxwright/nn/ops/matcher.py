"""Matchers of anchors to groundtruth boxes.

Dimensions: B batch, G groundtruth boxes (padded), A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from boxwright.nn.ops.operators import is_plain

UNMATCHED = -1
IGNORED = -2
# Caffe's: its bipartite step takes pairs that overlap by more.
_LEAST_SIMILARITY = 1e-6


class Matcher(Protocol):
    """Matches anchors to groundtruth boxes by similarity."""

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Return int64 [B, A]: the index of the matched box, UNMATCHED or IGNORED.

        Args:
            similarity: float [B, G, A]; -inf in rows of padding.
            valid: bool [B, G]; False for padding, and for boxes without weight.
        """
        ...


def has_match(match: Tensor, among: Tensor, count: int) -> Tensor:
    """Return which groundtruth boxes are matched, bool [B, G], by the anchors `among` bool [B, A]."""
    # An extra column takes unmatched anchors, and makes one for any number of objects. True is written directly, as
    # CUDA has no scatter maximum of bools.
    matched = torch.zeros(len(match), count + 1, dtype=torch.bool, device=match.device)
    return matched.scatter_(1, torch.where(among & (match >= 0), match, count), True)[:, :count]


@dataclass(frozen=True)
class ArgmaxMatcher:
    """Match each anchor to its most similar groundtruth box, if similar enough.

    With a best similarity s, an anchor is matched if s >= matched_threshold, negative if s < unmatched_threshold, and
    ignored in between; with `negatives_lower_than_unmatched` off, the latter two are swapped. With
    `force_match_for_each_row`, each groundtruth box also gets its most similar anchor, at any similarity; if two boxes
    want the same anchor, the first gets it. (TensorFlow's argmax_matcher.)

    Attributes:
        matched_threshold: The minimum similarity of a match; None matches every anchor to its best.
        negatives_lower_than_unmatched: Which of the two lower ranges is negative.
        force_match_for_each_row: Whether every groundtruth box gets an anchor.
    """

    matched_threshold: float | None = 0.5
    unmatched_threshold: float = 0.5
    negatives_lower_than_unmatched: bool = True
    force_match_for_each_row: bool = False

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Return int64 [B, A]: the index of the matched box, UNMATCHED or IGNORED."""
        batch, rows, columns = similarity.shape
        if rows == 0:
            return torch.full((batch, columns), UNMATCHED, dtype=torch.int64, device=similarity.device)
        match = self._match_by_threshold(similarity)
        if not self.force_match_for_each_row:
            return match
        row = torch.arange(rows, device=similarity.device).expand(batch, rows)
        wanting = row.masked_fill(~valid, rows)
        forced = torch.full((batch, columns), rows, dtype=torch.int64, device=similarity.device)
        forced.scatter_reduce_(1, similarity.argmax(dim=2), wanting, reduce="amin")
        return torch.where(forced < rows, forced, match)

    def _match_by_threshold(self, similarity: Tensor) -> Tensor:
        # Both return the first of equals, but argmax takes ten times as long across rows.
        best, best_row = similarity.max(dim=1)
        if self.matched_threshold is None:
            return best_row
        low, between = (UNMATCHED, IGNORED) if self.negatives_lower_than_unmatched else (IGNORED, UNMATCHED)
        match = best_row.masked_fill(best < self.matched_threshold, between)
        return match.masked_fill_(best < self.unmatched_threshold, low)


@dataclass(frozen=True)
class OwnLowQualityMatcher:
    """Match each anchor to its most similar groundtruth box, if similar enough or a best anchor of some box.

    An anchor with the highest similarity to some groundtruth box, ties included, is matched at any similarity, but to
    its own most similar box. (Detectron's, torchvision's and kerod's rule.)

    Attributes:
        unmatched_threshold: Below it an anchor is negative; between the two it is ignored.
    """

    matched_threshold: float = 0.7
    unmatched_threshold: float = 0.3

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Return int64 [B, A]: the index of the matched box, UNMATCHED or IGNORED."""
        match = ArgmaxMatcher(self.matched_threshold, self.unmatched_threshold)(similarity, valid)
        if similarity.shape[1] == 0:
            return match
        best = similarity.amax(dim=2, keepdim=True)
        surpassed_by_none = ((similarity == best) & valid[..., None]).any(dim=1)
        return torch.where(surpassed_by_none, similarity.max(dim=1).indices, match)


@dataclass(frozen=True)
class LastLowQualityMatcher:
    """Match each anchor to its most similar groundtruth box, if similar enough, else to one whose best anchor it is.

    As `OwnLowQualityMatcher`, but an anchor matched only for that reason is matched to the box whose best anchor it is,
    the last of several. For a box that overlaps nothing all anchors tie and match, unless other boxes claim them.
    (AlignDet's rule.)

    Attributes:
        unmatched_threshold: Below it an anchor is negative; between the two it is ignored.
    """

    matched_threshold: float = 0.7
    unmatched_threshold: float = 0.7

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Return int64 [B, A]: the index of the matched box, UNMATCHED or IGNORED."""
        match = ArgmaxMatcher(self.matched_threshold, self.unmatched_threshold)(similarity, valid)
        rows = similarity.shape[1]
        if rows == 0:
            return match
        best = similarity.amax(dim=2, keepdim=True)
        row = torch.arange(rows, device=similarity.device)[:, None]
        last = torch.where((similarity == best) & valid[..., None], row, UNMATCHED).amax(dim=1)
        return torch.where((match < 0) & (last >= 0), last, match)


@dataclass(frozen=True)
class BipartiteMatcher:
    """Match pairs one to one, greedily by similarity.

    Every valid groundtruth box gets an anchor while there are any. (TF1's bipartite_matcher; among equally similar
    pairs the first box's first anchor wins, which TF leaves open.)
    """

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Return int64 [B, A]: the index of the matched box, or UNMATCHED."""
        similarity = similarity.masked_fill(~valid[..., None], -torch.inf)
        match: Tensor = (_greedy_pairs if is_plain(similarity) else _operator)(similarity)
        return match


def _greedy_pairs(similarity: Tensor) -> Tensor:
    """Return the row matched to each column of [B, G, A], or UNMATCHED, among values above -inf."""
    batch, rows, columns = similarity.shape
    left, pairs = similarity.clone(), []
    for _ in range(min(rows, columns)):
        best, place = left.flatten(1).max(1)
        row, column = place // columns, place % columns
        pairs.append((best, row, column))
        left.scatter_(1, row[:, None, None].expand(-1, 1, columns), -torch.inf)
        left.scatter_(2, column[:, None, None].expand(-1, rows, 1), -torch.inf)
    match = torch.full((batch, columns + 1), UNMATCHED, dtype=torch.int64, device=similarity.device)
    if pairs:
        scores, matched, places = (torch.stack(of_all, dim=1) for of_all in zip(*pairs, strict=True))
        # Rows without a pair are written to an extra column, which is cut off.
        match.scatter_(1, places.masked_fill_(scores == -torch.inf, columns), matched)
    return match[:, :columns].contiguous()


# Compiled as Python, its loop would be unrolled for every number of boxes.
_operator = torch.library.custom_op("boxwright::greedy_pairs", _greedy_pairs, mutates_args=())


@_operator.register_fake
def _(similarity: Tensor) -> Tensor:
    return similarity.new_empty(similarity.shape[0], similarity.shape[2], dtype=torch.int64)


@dataclass(frozen=True)
class BipartiteArgmaxMatcher:
    """Match each groundtruth box to a separate anchor, then match the other anchors by thresholds.

    The first step is greedy over all pairs with positive similarity, most similar first, so two boxes with the same
    best anchor get two anchors. (SSD's and RefineDet's Caffe code.)

    Attributes:
        matched_threshold: The minimum similarity of the other matches.
        unmatched_threshold: Below it an anchor is negative; between the two it is ignored.
    """

    matched_threshold: float = 0.5
    unmatched_threshold: float = 0.5

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Return int64 [B, A]: the index of the matched box, UNMATCHED or IGNORED."""
        own = BipartiteMatcher()(similarity.masked_fill(similarity <= _LEAST_SIMILARITY, -torch.inf), valid)
        other = ArgmaxMatcher(self.matched_threshold, self.unmatched_threshold)(similarity, valid)
        return torch.where(own >= 0, own, other)
