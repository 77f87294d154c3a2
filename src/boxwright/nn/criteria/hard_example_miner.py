"""Hard example mining: training on the anchors with the highest losses.

Dimensions: B batch, A anchors, M the maximum of examples per image.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.nn.ops.matcher import UNMATCHED
from boxwright.nn.suppression.mining import suppress_batch


@dataclass(frozen=True)
class HardExampleMiner:
    """Keep the anchors with the highest losses that do not overlap, then cap negatives relative to positives.

    In each image, non-maximum suppression over the decoded boxes, with the loss as the score, keeps at most
    `num_hard_examples`. Of these all positives stay and, by decreasing loss, negatives up to
    `max_negatives_per_positive` times the positives, or `min_negatives_per_image` if that is more. (TensorFlow's
    HardExampleMiner.)

    Attributes:
        num_hard_examples: The maximum of examples per image; None for no limit.
        iou_threshold: Anchors are dropped whose boxes overlap one of higher loss by more.
        classification_share: Weight of the classification loss in the score.
        localization_share: Weight of the localization loss in the score.
        max_negatives_per_positive: The cap; None for none.
    """

    num_hard_examples: int | None = 64
    iou_threshold: float = 0.7
    classification_share: float = 1.0
    localization_share: float = 0.0
    max_negatives_per_positive: float | None = None
    min_negatives_per_image: int = 0

    def __call__(self, class_losses: Tensor, box_losses: Tensor, boxes: Tensor, match: Tensor) -> Tensor:
        """Return which anchors to train on, bool [B, A], without gradient."""
        score = self.classification_share * class_losses.detach() + self.localization_share * box_losses.detach()
        count = boxes.shape[1] if self.num_hard_examples is None else min(self.num_hard_examples, boxes.shape[1])
        if count == boxes.shape[1] and self.iou_threshold >= 1:
            kept = torch.ones_like(match, dtype=torch.bool)  # no overlap exceeds 1
        else:
            kept = suppress_batch(boxes.detach(), score, self.iou_threshold, count)
        if self.max_negatives_per_positive is None:
            return kept
        return self._cap_negatives(kept, score, match, self.max_negatives_per_positive)

    def _cap_negatives(self, kept: Tensor, score: Tensor, match: Tensor, ratio: float) -> Tensor:
        positive, negative = kept & (match >= 0), kept & (match == UNMATCHED)
        # Rounded down, as in TF.
        allowed = (positive.sum(1) * ratio).to(torch.int64).clamp(min=self.min_negatives_per_image)
        order = score.argsort(dim=1, descending=True, stable=True)
        negatives_so_far = torch.empty_like(order).scatter_(1, order, negative.gather(1, order).cumsum(1))
        # Ignored anchors stay until the cap is reached, as in TensorFlow; their weight is 0.
        return positive | (kept & (negatives_so_far <= allowed[:, None]))
