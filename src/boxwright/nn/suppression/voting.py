"""Merging the boxes of one class by voting (Gidaris and Komodakis, 2015, section 5).

Dimensions: N boxes of one class, V voted.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from boxwright.nn.ops.boxes import pairwise_iou


def vote(
    boxes: Tensor, scores: Tensor, iou_threshold: float, *, least_members: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return groups of overlapping boxes merged into their mean, weighted by score, with the best box's score.

    Args:
        boxes: float32 [N, 4], xyxy.
        scores: float32 [N].
        iou_threshold: The minimum overlap with the best box to be merged.

    Returns:
        Boxes [V, 4], scores [V] and the best members' indices [V], best first.
    """
    merged = [
        (_mean(boxes[members], scores[members]), scores[members[:1]], members[:1])
        for members, _ in _groups(boxes, scores, iou_threshold)
        if len(members) >= least_members
    ]
    return _joined(merged, boxes, scores)


def soft_vote(
    boxes: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes merged as by `vote` and the boxes themselves, with scores lowered by overlaps with the best.

    RefineDet's authors use this on COCO, after the idea of soft suppression.

    Args:
        boxes: float32 [N, 4], xyxy.
        scores: float32 [N].
        iou_threshold: The minimum overlap with the best box to be merged.

    Returns:
        Boxes [V, 4], scores [V] and members' indices [V], in no order.
    """
    merged = []
    for members, overlaps in _groups(boxes, scores, iou_threshold):
        merged.append((_mean(boxes[members], scores[members]), scores[members[:1]], members[:1]))
        lowered = scores[members] * (1 - overlaps)
        stays = lowered >= score_threshold
        if len(members) > 1:
            merged.append((boxes[members][stays], lowered[stays], members[stays]))
    return _joined(merged, boxes, scores)


def _groups(boxes: Tensor, scores: Tensor, threshold: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield groups around the best remaining box: indices, the best first, and overlaps with it."""
    order = scores.argsort(descending=True, stable=True)
    overlaps = pairwise_iou(boxes[order], boxes[order])
    # The overlap of an empty box with itself is 0 / 0, which counts as 0.
    overlaps.fill_diagonal_(1.0)
    left = torch.ones(len(order), dtype=torch.bool, device=boxes.device)
    for best in range(len(order)):
        if left[best]:
            members = left & (overlaps[best] >= threshold)
            members[best] = True  # includes a box without area, which overlaps nothing
            left &= ~members
            yield order[members], overlaps[best][members]


def _mean(boxes: Tensor, scores: Tensor) -> Tensor:
    weights = scores[:, None]
    return (boxes * weights).sum(0, keepdim=True) / weights.sum().clamp(min=1e-12)


def _joined(
    groups: list[tuple[Tensor, Tensor, Tensor]], boxes: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    if not groups:
        return boxes.new_zeros(0, 4), scores.new_zeros(0), torch.zeros(0, dtype=torch.int64, device=boxes.device)
    merged, of, members = zip(*groups, strict=True)
    return torch.cat(merged), torch.cat(of), torch.cat(members)
