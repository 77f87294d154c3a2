"""The candidates of suppression: the best scores of each level (RetinaNet, SRN, AlignDet).

Dimensions: B batch, A anchors, K foreground classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BestOfLevel:
    """Keep the best pairs of anchor and class of each level.

    Attributes:
        any_score_below_cells: Levels with fewer cells accept every score above 0 (SRN: 120).
        any_score_coarsest: The number of coarsest levels that do so too (AlignDet: 1).
    """

    count: int
    score_threshold: float = 0.0
    any_score_below_cells: int = 0
    any_score_coarsest: int = 0

    def __call__(self, scores: Tensor, grids: Sequence[tuple[int, int]], level_sizes: Sequence[int]) -> Tensor:
        """Return the scores, minus infinity for those that take no part.

        Args:
            scores: float [B, A, K], without background.
            grids: (height, width) of each level, finest first.
            level_sizes: The number of anchors of each level.
        """
        chosen = []
        for number, (part, (height, width)) in enumerate(
            zip(torch.split(scores, list(level_sizes), 1), grids, strict=True)
        ):
            # The coarsest levels have few cells, whose best boxes take part however little they score, as in the
            # releases.
            small = height * width < self.any_score_below_cells or number >= len(grids) - self.any_score_coarsest
            flat = part.flatten(1)
            best = flat.topk(min(self.count, flat.shape[1]), dim=1)
            kept = torch.where(best.values > (0.0 if small else self.score_threshold), best.values, -torch.inf)
            chosen.append(torch.full_like(flat, -torch.inf).scatter(1, best.indices, kept).view_as(part))
        return torch.cat(chosen, 1)
