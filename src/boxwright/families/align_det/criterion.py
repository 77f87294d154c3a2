"""AlignDet's assignment, in which an anchor's class and box may belong to different objects.

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxwright.nn.criteria.target_assigner import IGNORED, AnchorTargets, ArgmaxMatcher, TargetAssigner
from boxwright.types import Targets

# In pixels: decoding may leave a box of exactly one pixel a little smaller.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class OwnBoxAssigner(TargetAssigner):
    """Assign each matched anchor the class of its match, but the box that it overlaps most (as released).

    Boxes less than a pixel wide or high, as left by clipping, are ignored; the release has none.
    """

    @torch.no_grad()
    def __call__(self, anchors: Tensor, targets: Targets) -> AnchorTargets:
        """Return the targets of every anchor."""
        assigned = super().__call__(anchors, targets)
        # Without a threshold: the box that an anchor overlaps most, whether or not that is the match.
        own = TargetAssigner(self.columns, ArgmaxMatcher(None), self.box_coder, self.similarity)(anchors, targets)
        tiny = ((anchors[..., 2:] - anchors[..., :2]).amin(-1) < 1 - _ROUNDING).expand_as(assigned.match)
        match = torch.where(tiny, IGNORED, assigned.match)
        return replace(
            assigned,
            match=match,
            box_codes=torch.where((match >= 0)[..., None], own.box_codes, 0.0),
            box_weights=assigned.box_weights * ~tiny,
            class_weights=assigned.class_weights * ~tiny[..., None],
        )
