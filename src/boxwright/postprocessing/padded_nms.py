"""Suppression in tensors of fixed shape: the whole batch at once, no step that waits for the device.

So a network and its postprocessor compile into one graph. It looks at the best n pairs of anchor and
class, and says for each image whether that was enough; where it was, the result is `BatchNms`'s, but
that equal scores may come in another order.

Dimensions: B batch, A anchors, K foreground classes, n candidates, D detections (padded).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.ops.boxes import box_area, clip_boxes, pairwise_iou
from boxwright.postprocessing.batch_nms import BatchNms

__all__ = ["PaddedDetections", "PaddedNms"]


@dataclass(frozen=True)
class PaddedDetections:
    """What suppression left of a batch, best first.

    Attributes:
        boxes: float32 [B, D, 4], clipped, xyxy in pixels of the network's input; 0 where padded.
        scores: float32 [B, D]; 0 where padded.
        labels: int64 [B, D]; 0 where padded.
        anchors: int64 [B, D]; which anchor each came from; 0 where padded.
        valid: bool [B, D]; False where padded.
        final: bool [B]; whether more candidates could not have changed the image's result.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    anchors: Tensor
    valid: Tensor
    final: Tensor


@dataclass(frozen=True)
class PaddedNms:
    """Suppress each class by itself, among the best candidates.

    Which candidates stay is the one solution of "stays unless a better one of its class that stays
    overlaps it". It is found by asking of all at once, again and again: after r rounds everything
    that hangs on chains of up to r overlaps is right.

    Attributes:
        rules: Thresholds and caps.
        candidates: How many pairs are looked at, n.
        rounds: How often to ask; chains of overlaps are seldom longer than a few.
    """

    rules: BatchNms
    candidates: int = 1024
    rounds: int = 16

    def __call__(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> PaddedDetections:
        """Suppress.

        Args:
            boxes: float32 [B, A, 4], xyxy in pixels, unclipped.
            scores: float32 [B, A, K], without background.
            windows: float32 [B, 2]; the (height, width) to which boxes are clipped.

        Returns:
            The detections of the batch.
        """
        rules, total = self.rules, scores.shape[1] * scores.shape[2]
        best, anchors, labels = self._best(scores)
        count = best.shape[1]
        picked = boxes.gather(1, anchors[..., None].expand(-1, -1, 4))
        passing = (best > rules.score_threshold) & (best >= 0)
        same = labels[:, :, None] == labels[:, None, :]
        better = torch.ones(count, count, dtype=torch.bool, device=boxes.device).triu(1)
        beaten = same & better & (pairwise_iou(picked, picked) > rules.iou_threshold)
        kept, settled = self._settle(passing, beaten.to(boxes.dtype))
        before = ((same & better).to(boxes.dtype) * kept[:, :, None]).sum(1)
        kept = kept & (before < rules.max_detections_per_class)
        full = kept.sum(1) >= scores.shape[2] * rules.max_detections_per_class
        clipped = clip_boxes(picked, windows[:, :1], windows[:, 1:])
        kept = kept & (box_area(clipped) > 0)
        limit = min(rules.max_total_detections, count)
        # A stable sort brings what stays to the front, in order.
        front = (~kept).to(torch.int8).argsort(dim=1, stable=True)[:, :limit]
        valid = kept.gather(1, front)
        enough = (kept.sum(1) >= rules.max_total_detections) | full | ~passing[:, -1]
        enough = enough | torch.full_like(enough, count == total)
        return PaddedDetections(
            boxes=clipped.gather(1, front[..., None].expand(-1, -1, 4)) * valid[..., None],
            scores=best.gather(1, front) * valid,
            labels=labels.gather(1, front) * valid,
            anchors=anchors.gather(1, front) * valid,
            valid=valid,
            final=settled & enough,
        )

    def _best(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scores, anchors and labels of the best pairs, [B, n] each, best first."""
        rows = min(self.candidates, scores.shape[1])
        # The best n pairs lie in the n anchors whose best class scores highest.
        likely = scores.amax(dim=2).topk(rows, dim=1).indices
        pool = scores.gather(1, likely[..., None].expand(-1, -1, scores.shape[2])).flatten(1)
        best, pairs = pool.topk(min(self.candidates, pool.shape[1]), dim=1)
        return best, likely.gather(1, pairs // scores.shape[2]), pairs % scores.shape[2]

    def _settle(self, passing: Tensor, beaten: Tensor) -> tuple[Tensor, Tensor]:
        """Return which candidates stay [B, n], and whether another round would change nothing [B]."""
        kept = before = passing
        for _ in range(self.rounds):
            before = kept
            kept = passing & (torch.bmm(kept[:, None].to(beaten.dtype), beaten).squeeze(1) == 0)
        return kept, (kept == before).all(dim=1)
