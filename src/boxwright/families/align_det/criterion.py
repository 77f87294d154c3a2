"""AlignDet's assignment, in which an anchor's class and box may belong to different objects.

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxwright.nn.criteria.target_assigner import IGNORED, AnchorTargets, ArgmaxMatcher, ClassColumns, TargetAssigner
from boxwright.nn.ops.box_coder import BoxCoder
from boxwright.types import Targets

# In pixels: decoding may leave a box of exactly one pixel a little smaller.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class OwnBoxAssigner:
    """Assign each matched anchor the class of its match, but the box that it overlaps most (as released).

    Boxes less than a pixel wide or high, as left by clipping, are ignored; the release has none.
    """

    assigner: TargetAssigner

    @property
    def columns(self) -> ClassColumns:
        """The class head's columns."""
        return self.assigner.columns

    @property
    def box_coder(self) -> BoxCoder:
        """Encodes boxes."""
        return self.assigner.box_coder

    @property
    def unit_free(self) -> bool:
        """Whether the result is independent of the units of x and y."""
        return self.assigner.unit_free

    @torch.no_grad()
    def __call__(self, anchors: Tensor, targets: Targets) -> AnchorTargets:
        """Return the targets of every anchor."""
        assigned = self.assigner(anchors, targets)
        # Without a threshold: the box that an anchor overlaps most, whether or not that is the match.
        own = replace(self.assigner, matcher=ArgmaxMatcher(None))(anchors, targets)
        tiny = ((anchors[..., 2:] - anchors[..., :2]).amin(-1) < 1 - _ROUNDING).expand_as(assigned.match)
        match = torch.where(tiny, IGNORED, assigned.match)
        return replace(
            assigned,
            match=match,
            box_codes=torch.where((match >= 0)[..., None], own.box_codes, 0.0),
            box_weights=assigned.box_weights * ~tiny,
            class_weights=assigned.class_weights * ~tiny[..., None],
        )
