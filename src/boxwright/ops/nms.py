"""Non-maximum suppression: of boxes that overlap, the best scored stays.

Dimensions: B batch, A boxes an image, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.ops import nms

__all__ = ["suppress_batch", "suppress_classes"]


def suppress_batch(boxes: Tensor, scores: Tensor, iou_threshold: float, max_output: int) -> Tensor:
    """Suppress within each image of a batch.

    Greedy suppression is sequential within an image; its cost is quadratic in the boxes that are
    compared, so images are suppressed apart.

    Args:
        boxes: float [B, A, 4], xyxy.
        scores: float [B, A].
        iou_threshold: Boxes that overlap a kept one by more are dropped.
        max_output: The most boxes an image keeps.

    Returns:
        bool [B, A]: the boxes that stay.
    """
    kept = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    for image_kept, image_boxes, image_scores in zip(kept, boxes.float(), scores.float(), strict=True):
        image_kept[nms(image_boxes, image_scores, iou_threshold)[:max_output]] = True
    return kept


def suppress_classes(boxes: Tensor, scores: Tensor, classes: Tensor, iou_threshold: float) -> Tensor:
    """Suppress among the boxes of one class, for all classes at once.

    Args:
        boxes: float [A, 4], xyxy.
        scores: float [A].
        classes: int64 [A].
        iou_threshold: Boxes that overlap a kept one of their class by more are dropped.

    Returns:
        int64 [kept], indices, best first.
    """
    if boxes.numel() == 0:
        return torch.zeros(0, dtype=torch.int64, device=boxes.device)
    # Classes are moved apart so that they cannot meet; in double precision, so that the move
    # does not round the overlaps.
    boxes = boxes.double()
    span = boxes.max() - boxes.min() + 1
    kept: Tensor = nms(boxes + (classes * span)[:, None], scores.double(), iou_threshold)
    return kept
