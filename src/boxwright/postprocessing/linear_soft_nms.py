"""Lowering, after suppression, the scores of boxes that still overlap better ones (Bodla et al., 2017, equation 2).

Dimensions: B batch, A anchors, K foreground classes, D detections.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.ops.boxes import pairwise_iou
from boxwright.postprocessing.batch_nms import Kept, Nms

__all__ = ["ThenLinearSoftNms"]


@dataclass(frozen=True)
class ThenLinearSoftNms:
    """Suppress, then multiply a score with 1 - IoU for each better box of its class that overlaps by more than a limit.

    What is better is decided anew after each lowering. RefineDet's authors evaluate COCO so.

    Attributes:
        nms: Suppresses first.
        iou_threshold: The overlap from which scores are lowered.
        score_threshold: Boxes whose score is lowered below it are dropped.
    """

    nms: Nms
    iou_threshold: float
    score_threshold: float

    def __call__(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> list[Kept]:
        """Suppress each image of a batch.

        Args:
            boxes: float32 [B, A, 4], xyxy in pixels, unclipped; or [B, A, K, 4], a box for each class.
            scores: float32 [B, A, K], without background.
            windows: float32 [B, 2]; the (height, width) to which boxes are clipped.

        Returns:
            B results.
        """
        return [self._image(kept) for kept in self.nms(boxes, scores, windows)]

    def _image(self, kept: Kept) -> Kept:
        overlaps = pairwise_iou(kept.boxes, kept.boxes)
        lowers = (overlaps > self.iou_threshold) & (kept.labels[:, None] == kept.labels)
        factors = torch.where(lowers, 1 - overlaps, 1.0)
        scores, left = kept.scores.clone(), torch.ones_like(kept.labels, dtype=torch.bool)
        for _ in range(len(scores)):
            best = torch.where(left, scores, -torch.inf).argmax()
            left[best] = False
            scores = torch.where(left, scores * factors[best], scores)
        order = scores.argsort(descending=True, stable=True)
        order = order[scores[order] >= self.score_threshold]
        return Kept(kept.boxes[order], scores[order], kept.labels[order], kept.anchors[order])
