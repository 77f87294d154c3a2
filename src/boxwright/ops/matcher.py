"""Matchers: which groundtruth box each anchor answers for.

Dimensions: B batch, G groundtruth boxes (padded), A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["IGNORED", "UNMATCHED", "ArgmaxMatcher"]

UNMATCHED = -1
IGNORED = -2


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
        """Match.

        Args:
            similarity: float [B, G, A].
            valid: bool [B, G]; False for padding, and for boxes that no anchor must be forced on.

        Returns:
            int64 [B, A]: the index of the matched box, UNMATCHED or IGNORED.
        """
        batch, rows, columns = similarity.shape
        if rows == 0:
            return torch.full((batch, columns), UNMATCHED, dtype=torch.int64, device=similarity.device)
        match = self._match_by_threshold(similarity)
        if not self.force_match_for_each_row:
            return match
        row = torch.arange(rows, device=similarity.device).expand(batch, rows)
        wanting = torch.where(valid, row, rows)
        forced = torch.full((batch, columns), rows, dtype=torch.int64, device=similarity.device)
        forced.scatter_reduce_(1, similarity.argmax(dim=2), wanting, reduce="amin")
        return torch.where(forced < rows, forced, match)

    def _match_by_threshold(self, similarity: Tensor) -> Tensor:
        best_row = similarity.argmax(dim=1)
        if self.matched_threshold is None:
            return best_row
        best = similarity.gather(1, best_row[:, None]).squeeze(1)
        low, between = (UNMATCHED, IGNORED) if self.negatives_lower_than_unmatched else (IGNORED, UNMATCHED)
        match = torch.where(best < self.matched_threshold, between, best_row)
        return torch.where(best < self.unmatched_threshold, low, match)
