"""AlignDet's assignment: an anchor's class may be another object's than its box.

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxwright.criteria.target_assigner import AnchorTargets, ClassColumns, TargetAssigner
from boxwright.ops.box_coder import BoxCoder
from boxwright.ops.matcher import ArgmaxMatcher
from boxwright.types import Targets

__all__ = ["OwnBoxAssigner"]


@dataclass(frozen=True)
class OwnBoxAssigner:
    """Give each matched anchor the class of its match, but the box that it overlaps most (as released).

    Attributes:
        assigner: Matches, and writes targets.
    """

    assigner: TargetAssigner

    @property
    def columns(self) -> ClassColumns:
        """The class head's columns."""
        return self.assigner.columns

    @property
    def box_coder(self) -> BoxCoder:
        """Writes boxes as codes."""
        return self.assigner.box_coder

    @property
    def unit_free(self) -> bool:
        """Whether the same comes out whatever the units of x and y."""
        return self.assigner.unit_free

    @torch.no_grad()
    def __call__(self, anchors: Tensor, targets: Targets) -> AnchorTargets:
        """Return the targets of every anchor."""
        found = self.assigner(anchors, targets)
        own = replace(self.assigner, matcher=ArgmaxMatcher(None))(anchors, targets)
        return replace(found, box_codes=torch.where((found.match >= 0)[..., None], own.box_codes, 0.0))
