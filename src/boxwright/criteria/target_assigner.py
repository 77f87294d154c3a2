"""Target assignment: what each anchor should predict, and how much it counts.

Dimensions: B batch, G groundtruth boxes (padded), A anchors, C columns of the class targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.ops.box_coder import FasterRcnnBoxCoder
from boxwright.ops.boxes import pairwise_iou
from boxwright.ops.matcher import IGNORED, ArgmaxMatcher
from boxwright.types import Targets

__all__ = ["AnchorTargets", "ClassColumns", "TargetAssigner"]


@dataclass(frozen=True)
class ClassColumns:
    """Which columns a class head has, and what they say of an anchor without an object.

    Attributes:
        num_classes: Foreground classes, K.
        background: Columns before the foreground: 1 where column 0 is background, else 0.
        background_target: What column 0 should be for an unmatched anchor; 0 where background is
            encoded as all zeros.
    """

    num_classes: int
    background: int = 1
    background_target: float = 1.0

    @property
    def count(self) -> int:
        """Columns in all, C."""
        return self.num_classes + self.background


@dataclass(frozen=True)
class AnchorTargets:
    """What each anchor should predict.

    Attributes:
        match: int64 [B, A]: the matched groundtruth box, or the matcher's UNMATCHED or IGNORED.
        box_codes: float32 [B, A, code size]; zeros where unmatched.
        box_weights: float32 [B, A]; zero where unmatched.
        classes: float32 [B, A, C].
        class_weights: float32 [B, A]; zero where ignored.
    """

    match: Tensor
    box_codes: Tensor
    box_weights: Tensor
    classes: Tensor
    class_weights: Tensor


@dataclass(frozen=True)
class TargetAssigner:
    """Compare, match, and write down the targets of the whole batch.

    Attributes:
        columns: The class head's columns.
        matcher: Decides from similarities.
        box_coder: Writes the matched box as the anchor's code.
        similarity: Compares [B, G, 4] and [A, 4] boxes into [B, G, A].
        negative_class_weight: The weight of unmatched anchors in classification.
    """

    columns: ClassColumns
    matcher: ArgmaxMatcher
    box_coder: FasterRcnnBoxCoder
    similarity: Callable[[Tensor, Tensor], Tensor] = pairwise_iou
    negative_class_weight: float = 1.0

    @torch.no_grad()
    def __call__(self, anchors: Tensor, targets: Targets) -> AnchorTargets:
        """Assign.

        Args:
            anchors: float32 [A, 4], xyxy.
            targets: The groundtruth, in the same frame.

        Returns:
            The targets of every anchor.
        """
        if targets.boxes.shape[1] == 0:
            targets = _one_padding_row(targets)
        similarity = self.similarity(targets.boxes, anchors)
        similarity = torch.where(targets.valid[..., None], similarity, -1.0)
        match = self.matcher(similarity, targets.valid & (targets.weights > 0))
        matched = match >= 0
        row = match.clamp(min=0)
        # A padding row can win only where an image has no boxes and thresholds are ignored.
        matched &= targets.valid.gather(1, row)
        boxes = targets.boxes.gather(1, row[..., None].expand(-1, -1, 4))
        weights = targets.weights.gather(1, row)
        codes = self.box_coder.encode(boxes, anchors)
        return AnchorTargets(
            match=match,
            box_codes=torch.where(matched[..., None], codes, 0.0),
            box_weights=torch.where(matched, weights, 0.0),
            classes=self._class_targets(matched, targets.labels.gather(1, row)),
            class_weights=torch.where(matched, weights, self.negative_class_weight) * (match != IGNORED),
        )

    def _class_targets(self, matched: Tensor, labels: Tensor) -> Tensor:
        columns = self.columns
        one_hot = F.one_hot(labels + columns.background, columns.count).float()
        unmatched = one_hot.new_zeros(columns.count)
        if columns.background:
            unmatched[0] = columns.background_target
        return torch.where(matched[..., None], one_hot, unmatched)


def _one_padding_row(targets: Targets) -> Targets:
    """Give a batch without any box one row of padding, so that there is a row to gather."""
    batch = targets.boxes.shape[0]
    return Targets(
        boxes=targets.boxes.new_zeros(batch, 1, 4),
        labels=targets.labels.new_zeros(batch, 1),
        weights=targets.weights.new_zeros(batch, 1),
        valid=targets.valid.new_zeros(batch, 1),
    )
