"""Matchers: which groundtruth box each anchor answers for.

Dimensions: B batch, G groundtruth boxes (padded), A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

UNMATCHED = -1
IGNORED = -2
_LEAST_SIMILARITY = 1e-6


class Matcher(Protocol):
    """Decides from similarities."""

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Match.

        Args:
            similarity: float [B, G, A]; -inf in rows of padding.
            valid: bool [B, G]; False for padding, and for boxes without weight.

        Returns:
            int64 [B, A]: the index of the matched box, UNMATCHED or IGNORED.
        """
        ...


def has_match(match: Tensor, among: Tensor, count: int) -> Tensor:
    """Return which groundtruth boxes some anchor answers for.

    Args:
        match: int64 [B, A]: the index of the matched box, UNMATCHED or IGNORED.
        among: bool [B, A]; the anchors that count.

    Returns:
        bool [B, G].
    """
    # One column more, for anchors without a match: so there is one, however few objects there are. True is written as
    # it is: a maximum of bools, which a CPU can scatter, is nothing that CUDA knows.
    found = torch.zeros(len(match), count + 1, dtype=torch.bool, device=match.device)
    return found.scatter_(1, torch.where(among & (match >= 0), match, count), True)[:, :count]


@dataclass(frozen=True)
class ArgmaxMatcher:
    """Match each anchor to its most similar groundtruth box, if that is similar enough.

    With a best similarity s, an anchor is matched where s >= matched_threshold, negative where
    s < unmatched_threshold, and ignored between; with `negatives_lower_than_unmatched` off, the two
    latter change places. With `force_match_for_each_row`, each groundtruth box also gets the anchor
    most similar to it, however little that is; where two boxes want the same anchor, the first
    has it. (TensorFlow's argmax_matcher.)

    Attributes:
        matched_threshold: The least similarity of a match; None matches every anchor to its best.
        unmatched_threshold: Below it an anchor is negative.
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
        # Of equals both give the first, but argmax takes ten times as long across rows.
        best, best_row = similarity.max(dim=1)
        if self.matched_threshold is None:
            return best_row
        low, between = (UNMATCHED, IGNORED) if self.negatives_lower_than_unmatched else (IGNORED, UNMATCHED)
        match = best_row.masked_fill(best < self.matched_threshold, between)
        return match.masked_fill_(best < self.unmatched_threshold, low)


@dataclass(frozen=True)
class OwnLowQualityMatcher:
    """Match each anchor to its most similar groundtruth box, if that is similar enough, or if no anchor is more so.

    An anchor that no other surpasses for some groundtruth box is matched, however little it is like it; but to the box
    that it is most like itself, and so are all that tie. (Detectron's, torchvision's and kerod's rule.)

    Attributes:
        matched_threshold: The least similarity of other matches.
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
    """Match each anchor to its most similar groundtruth box, if that is similar enough, else to one that has no better.

    As `OwnLowQualityMatcher`, but an anchor that is matched for that reason alone belongs to the box that has no
    better: to the last of several. A box that overlaps nothing has none better than any: all are its own, unless
    another claims them. (AlignDet's rule.)

    Attributes:
        matched_threshold: The least similarity of other matches.
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
    """Match pairs one to one, greedily: the most similar pair first, then the next of those left.

    Every valid groundtruth box gets an anchor, as long as there are any. (TF1's bipartite_matcher; of
    pairs equally alike the first box's first anchor wins, which TF leaves open.)
    """

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Return int64 [B, A]: the index of the matched box, or UNMATCHED."""
        match: Tensor = _greedy_pairs(similarity.masked_fill(~valid[..., None], -torch.inf))
        return match


# An operator of its own: compiled as Python, its loop would be unrolled anew for every number of boxes.
@torch.library.custom_op("boxwright::greedy_pairs", mutates_args=())
def _greedy_pairs(similarity: Tensor) -> Tensor:
    """Match rows and columns [B, G, A] of what is more than -inf; returns the row of each column, or UNMATCHED."""
    batch, rows, columns = similarity.shape
    left, found = similarity.clone(), []
    for _ in range(min(rows, columns)):
        best, place = left.flatten(1).max(1)
        row, column = place // columns, place % columns
        found.append((best, row, column))
        left.scatter_(1, row[:, None, None].expand(-1, 1, columns), -torch.inf)
        left.scatter_(2, column[:, None, None].expand(-1, rows, 1), -torch.inf)
    match = torch.full((batch, columns + 1), UNMATCHED, dtype=torch.int64, device=similarity.device)
    if found:
        scores, matched, places = (torch.stack(of_all, dim=1) for of_all in zip(*found, strict=True))
        # What is left when no pair is goes to one column more, which is cut off.
        match.scatter_(1, places.masked_fill_(scores == -torch.inf, columns), matched)
    return match[:, :columns].contiguous()


@_greedy_pairs.register_fake
def _(similarity: Tensor) -> Tensor:
    return similarity.new_empty(similarity.shape[0], similarity.shape[2], dtype=torch.int64)


@dataclass(frozen=True)
class BipartiteArgmaxMatcher:
    """Give each groundtruth box an anchor of its own, then match the other anchors by thresholds.

    The first is greedy over all pairs, most similar first, as far as they are similar at all; so two
    boxes that like the same anchor best get two anchors. (SSD's and RefineDet's Caffe code.)

    Attributes:
        matched_threshold: The least similarity of the matches after that.
        unmatched_threshold: Below it an anchor is negative; between the two it is ignored.
    """

    matched_threshold: float = 0.5
    unmatched_threshold: float = 0.5

    def __call__(self, similarity: Tensor, valid: Tensor) -> Tensor:
        """Return int64 [B, A]: the index of the matched box, UNMATCHED or IGNORED."""
        own = BipartiteMatcher()(similarity.masked_fill(similarity <= _LEAST_SIMILARITY, -torch.inf), valid)
        other = ArgmaxMatcher(self.matched_threshold, self.unmatched_threshold)(similarity, valid)
        return torch.where(own >= 0, own, other)
