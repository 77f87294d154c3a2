"""Greedy suppression: among overlapping boxes of a class, the one with the highest score stays.

torchvision computes it. Its import takes a second, so it waits for the first boxes.

Dimensions: B batch, A boxes, n candidates, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Boxes suppressed in one call, which compares all pairs: on an H200, 36,000 take 60 ms, eight times 4,500 take 20 ms.
_MOST_TOGETHER = 1 << 13
_FARTHEST = 1e7  # pixels: larger than any image, and a hundred times that is precise in float64


def suppress_classes(boxes: Tensor, scores: Tensor, classes: Tensor, iou_threshold: float) -> Tensor:
    """Return the boxes kept after suppression within each class.

    Args:
        boxes: float [A, 4], xyxy.
        classes: int64 [A].
        iou_threshold: Boxes that overlap a kept one of their class by more are dropped.

    Returns:
        int64 [kept], indices, best first.
    """
    if boxes.numel() == 0:
        return torch.zeros(0, dtype=torch.int64, device=boxes.device)
    from torchvision.ops import nms

    boxes = bounded(boxes.double())  # so that sums do not round the overlaps
    # Classes are offset so that they cannot overlap.
    span = boxes.max() - boxes.min() + 1
    kept: Tensor = nms(boxes + (classes * span)[:, None], scores.double(), iou_threshold)
    return kept


def suppress_images(boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float) -> Tensor:
    """Return the boxes kept within each class and image, by one call per group of images; each call synchronizes a GPU.

    Args:
        boxes: float [B, n, 4], xyxy.
        scores: float [B, n].
        labels: int64 [B, n].
        iou_threshold: Boxes that overlap a kept one of their class by more are dropped.

    Returns:
        bool [B, n]: the boxes that stay.
    """
    batch, count = scores.shape
    kept = torch.zeros_like(scores, dtype=torch.bool)
    at_once = max(_MOST_TOGETHER // max(count, 1), 1)
    for first in range(0, batch, at_once):
        part = slice(first, first + at_once)
        group = labels[part] + num_classes * torch.arange(len(labels[part]), device=labels.device)[:, None]
        stays = suppress_classes(boxes[part].flatten(0, 1), scores[part].flatten(), group.flatten(), iou_threshold)
        kept[part].view(-1).index_fill_(0, stays, True)
    return kept


def rank_in_class(labels: Tensor, num_classes: int) -> Tensor:
    """Return the number of earlier items of each item's class, for int64 [N]."""
    one_hot = torch.nn.functional.one_hot(labels, num_classes)
    return (one_hot.cumsum(0) - one_hot).gather(1, labels[:, None]).squeeze(1)


def bounded(boxes: Tensor) -> Tensor:
    """Return boxes without infinities and NaN, one of which would spoil the arithmetic of all."""
    return boxes.nan_to_num(nan=0.0).clamp(-_FARTHEST, _FARTHEST)


@torch.library.custom_op("boxwright::suppress_pairs", mutates_args=())
def suppress_pairs(
    boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float, max_per_class: int
) -> Tensor:
    """Return which of the best pairs of box and class of each image stay.

    An operator, since its work is data-dependent; runtimes have an equivalent (ONNX's NonMaxSuppression), and
    `fixed_shape.suppress_in_rounds` is the same in plain tensors.

    Args:
        boxes: float32 [B, n, 4], xyxy.
        scores: float32 [B, n], best first; below 0 for pairs that take no part.
        labels: int64 [B, n]; the class of each pair.
        iou_threshold: Boxes that overlap a kept one of their class by more are dropped.

    Returns:
        bool [B, n]: the pairs that stay.
    """
    kept = torch.zeros_like(scores, dtype=torch.bool)
    for number, passing in enumerate(scores >= 0):
        rows = passing.nonzero().squeeze(1)
        own = labels[number, rows]
        best = suppress_classes(boxes[number, rows], scores[number, rows], own, iou_threshold)
        best = best[rank_in_class(own[best], num_classes) < max_per_class]
        kept[number, rows[best]] = True
    return kept


@suppress_pairs.register_fake
def _(
    boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float, max_per_class: int
) -> Tensor:
    return torch.empty_like(scores, dtype=torch.bool)


def suppress_pairs_together(
    boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float, max_per_class: int
) -> Tensor:
    """Return what `suppress_pairs` returns, synchronizing a GPU once per group of images."""
    # Pairs that take no part score below all others, and suppress none of them.
    kept = suppress_images(boxes, scores, labels, num_classes, iou_threshold) & (scores >= 0)
    if max_per_class >= scores.shape[1]:
        return kept
    own = torch.nn.functional.one_hot(labels, num_classes) * kept[..., None]
    return kept & ((own.cumsum(1) - own).gather(2, labels[..., None]).squeeze(2) < max_per_class)
