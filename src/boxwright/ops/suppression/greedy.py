"""Greedy suppression: of boxes of one class that overlap, the best scored stays.

Dimensions: B batch, A boxes, n candidates, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.ops import nms

# Boxes that are suppressed in one call: torchvision notes each pair by a bit, here in an eighth of a gigabyte.
_MOST_TOGETHER = 1 << 15
_FARTHEST = 1e7  # pixels: no image is so large, and a hundred times that keeps its digits in double precision


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
    boxes = bounded(boxes.double())
    span = boxes.max() - boxes.min() + 1
    kept: Tensor = nms(boxes + (classes * span)[:, None], scores.double(), iou_threshold)
    return kept


def suppress_images(boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float) -> Tensor:
    """Suppress within each class of each image, by one call for as many images as fit; each call waits for a GPU.

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
    """Count, for each item of int64 [N], the earlier items of its class."""
    one_hot = torch.nn.functional.one_hot(labels, num_classes)
    return (one_hot.cumsum(0) - one_hot).gather(1, labels[:, None]).squeeze(1)


def bounded(boxes: Tensor) -> Tensor:
    """Return boxes without infinities and NaN, of which one would spoil the arithmetic of all."""
    return boxes.nan_to_num(nan=0.0).clamp(-_FARTHEST, _FARTHEST)


@torch.library.custom_op("boxwright::suppress_pairs", mutates_args=())
def suppress_pairs(
    boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float, max_per_class: int
) -> Tensor:
    """Suppress among the best pairs of box and class of each image of a batch.

    An operator, since its work depends on the data; runtimes have an equivalent (ONNX's NonMaxSuppression), and
    `fixed_shape.suppress_in_rounds` is the same in plain tensors.

    Args:
        boxes: float32 [B, n, 4], xyxy.
        scores: float32 [B, n], best first; below 0 where a pair takes no part.
        labels: int64 [B, n]; the class of each pair.
        iou_threshold: Boxes that overlap a kept one of their class by more are dropped.
        max_per_class: The most that each class keeps.

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
    """Return what `suppress_pairs` returns; a GPU is waited for once, not once an image."""
    # What takes no part scores below all that does, and suppresses nothing of it.
    kept = suppress_images(boxes, scores, labels, num_classes, iou_threshold) & (scores >= 0)
    if max_per_class >= scores.shape[1]:
        return kept
    own = torch.nn.functional.one_hot(labels, num_classes) * kept[..., None]
    return kept & ((own.cumsum(1) - own).gather(2, labels[..., None]).squeeze(2) < max_per_class)
