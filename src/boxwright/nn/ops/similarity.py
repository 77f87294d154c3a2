"""Similarities of boxes, for matchers.

Each compares groundtruth boxes with anchors, both xyxy in units of the network's input.

Dimensions: B batch, G groundtruth boxes, A anchors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.nn.ops.boxes import pairwise_iou

# Boxes [B, G, 4] and anchors [A, 4] to [B, G, A]; larger is more similar.
Similarity = Callable[[Tensor, Tensor], Tensor]


def negative_squared_distance(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the negative squared distance of all pairs over the four coordinates.

    Args:
        boxes: [..., G, 4], xyxy.
        others: [..., A, 4], xyxy; leading dimensions broadcast.

    Returns:
        [..., G, A], at most 0.
    """
    return -(boxes[..., :, None, :] - others[..., None, :, :]).square().sum(-1)


@dataclass(frozen=True)
class ThresholdedIou:
    """1 for pairs that overlap enough, else 0.

    TF returns the groundtruth box's score, which is 1 for every object except those of the first class of a detector
    without background column, where it is 0; here it is 1 for all.

    Attributes:
        iou_threshold: The overlap that a pair must exceed.
    """

    iou_threshold: float = 0.5

    def __call__(self, boxes: Tensor, others: Tensor) -> Tensor:
        """Return float [..., G, A] of 0 and 1."""
        return (pairwise_iou(boxes, others) > self.iou_threshold).to(torch.float32)
