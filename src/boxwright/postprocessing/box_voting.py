"""Merging detections of one image from many looks at it, by voting (Gidaris and Komodakis, 2015, section 5).

Dimensions: N detections of one class, V voted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from boxwright.ops.boxes import pairwise_iou

__all__ = ["BoxVoting", "SoftBoxVoting", "Voting"]


class Voting(Protocol):
    """Merges the detections of one class."""

    def __call__(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Merge.

        Args:
            boxes: float32 [N, 4], xyxy.
            scores: float32 [N].

        Returns:
            Boxes [V, 4] and scores [V], in no order.
        """
        ...


@dataclass(frozen=True)
class BoxVoting:
    """The best box and those that overlap it become their mean, weighed by score, with the best's score.

    Attributes:
        iou_threshold: The least overlap with the best to take part.
    """

    iou_threshold: float = 0.45

    def __call__(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Merge.

        Args:
            boxes: float32 [N, 4], xyxy.
            scores: float32 [N].

        Returns:
            Boxes [V, 4] and scores [V], best first.
        """
        found = [_mean(boxes[members], scores[members]) for members, _ in _groups(boxes, scores, self.iou_threshold)]
        return _stacked(found, boxes)


@dataclass(frozen=True)
class SoftBoxVoting:
    """The same; those that took part stay besides, with scores lowered by their overlap with the best.

    RefineDet's authors merge so on COCO, after soft suppression's idea.

    Attributes:
        iou_threshold: The least overlap with the best to take part.
        score_threshold: The least lowered score that stays.
    """

    iou_threshold: float = 0.45
    score_threshold: float = 0.01

    def __call__(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Merge.

        Args:
            boxes: float32 [N, 4], xyxy.
            scores: float32 [N].

        Returns:
            Boxes [V, 4] and scores [V], in no order.
        """
        found: list[tuple[Tensor, Tensor]] = []
        for members, overlaps in _groups(boxes, scores, self.iou_threshold):
            found.append(_mean(boxes[members], scores[members]))
            lowered = scores[members] * (1 - overlaps)
            stays = lowered >= self.score_threshold
            if len(members) > 1:
                found.append((boxes[members][stays], lowered[stays]))
        return _stacked(found, boxes)


def _groups(boxes: Tensor, scores: Tensor, threshold: float) -> list[tuple[Tensor, Tensor]]:
    """Part detections into groups about ever the best that is left: indices, and overlaps with that best."""
    order = scores.argsort(descending=True, stable=True)
    overlaps = pairwise_iou(boxes[order], boxes[order])
    overlaps.fill_diagonal_(1.0)  # a box without area overlaps itself too
    left = torch.ones(len(order), dtype=torch.bool, device=boxes.device)
    groups = []
    for best in range(len(order)):
        if left[best]:
            members = left & (overlaps[best] >= threshold)
            left &= ~members
            groups.append((order[members], overlaps[best][members]))
    return groups


def _mean(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    weights = scores[:, None]
    return (boxes * weights).sum(0, keepdim=True) / weights.sum().clamp(min=1e-12), scores.max()[None]


def _stacked(found: list[tuple[Tensor, Tensor]], boxes: Tensor) -> tuple[Tensor, Tensor]:
    if not found:
        return boxes.new_zeros(0, 4), boxes.new_zeros(0)
    return torch.cat([box for box, _ in found]), torch.cat([score for _, score in found])
