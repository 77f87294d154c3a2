"""Greedy suppression of hard example mining, which keeps thousands of boxes an image at overlaps near 1.

Dimensions: B batch, A boxes an image.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.ops import nms

from boxwright.ops.suppression.greedy import suppress_images

# From this threshold on, pairs of near duplicates are searched for first, and only they are compared by score.
_NEARLY = 0.98
# The search gives up where boxes have more neighbors than this on average.
_MOST_NEIGHBORS = 40
# Boxes are sorted by x + slant · y; with an irrational slant no two cells of a grid share a position.
_SLANT = 0.7548776662
_SPARE = 256  # candidates beyond twice of what an image keeps


def suppress_batch(boxes: Tensor, scores: Tensor, iou_threshold: float, max_output: int) -> Tensor:
    """Suppress within each image of a batch.

    Args:
        boxes: float [B, A, 4], xyxy.
        scores: float [B, A].
        iou_threshold: Boxes that overlap a kept one by more are dropped.
        max_output: The most boxes an image keeps.

    Returns:
        bool [B, A]: the boxes that stay.
    """
    boxes, scores = boxes.float(), scores.float()
    if boxes.is_cuda:
        chosen, complete = suppress_best(boxes, scores, iou_threshold, max_output)
        if bool(complete.all()):
            return chosen
    kept = torch.ones(scores.shape, dtype=torch.bool, device=scores.device)
    compared = _near_duplicates(boxes, iou_threshold) if iou_threshold >= _NEARLY else kept.clone()
    for image_kept, image_compared, image_boxes, image_scores in zip(kept, compared, boxes, scores, strict=True):
        rows = image_compared.nonzero().squeeze(1)
        image_kept[rows] = False
        image_kept[rows[nms(image_boxes[rows], image_scores[rows], iou_threshold)]] = True
        if max_output < len(image_kept):
            best = image_scores.masked_fill(~image_kept, -torch.inf).argsort(descending=True, stable=True)
            image_kept[best[max_output:]] = False
    return kept


def suppress_best(boxes: Tensor, scores: Tensor, iou_threshold: float, max_output: int) -> tuple[Tensor, Tensor]:
    """Suppress among the best boxes of each image, all images together.

    A box is dropped by better ones alone: where an image is full, or all its boxes took part, the rest change nothing.

    Args:
        boxes: As for `suppress_batch`, float32.
        scores: As there, float32.

    Returns:
        As `suppress_batch`; and bool [B]: that this is what it returns.
    """
    count = min(2 * max_output + _SPARE, scores.shape[1])
    best = scores.topk(count, dim=1)
    candidates = boxes.gather(1, best.indices[..., None].expand(-1, -1, 4))
    kept = suppress_images(candidates, best.values, torch.zeros_like(best.indices), 1, iou_threshold)
    full = kept.sum(1) >= max_output
    kept = kept & (kept.cumsum(1) <= max_output)
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, best.indices, kept)
    return chosen, full | (count == scores.shape[1])


def _near_duplicates(boxes: Tensor, iou_threshold: float) -> Tensor:
    """Return bool [B, A]: boxes [B, A, 4] that may overlap another of their image by more than a threshold near 1.

    Two such boxes share more than that part of either's width and height, so their corners lie within
    (1 - t) / t of either's sides of each other. Sorted along a line across both axes, each is compared with those
    that follow it until they are too far.
    """
    flat = boxes.flatten(0, 1).double()
    sides = flat[:, 2:] - flat[:, :2]
    image = torch.arange(len(flat), device=flat.device) // max(boxes.shape[1], 1)
    usable = flat.isfinite().all(1) & (sides > 0).all(1)
    position = flat[:, 0] + _SLANT * flat[:, 1]
    span = (position[usable].max() - position[usable].min() + 1) if bool(usable.any()) else 1.0
    numbers = usable.nonzero().squeeze(1)
    position = position[numbers] + image[numbers] * 2 * span  # images apart
    order = position.argsort()
    numbers, position = numbers[order], position[order]
    corners, areas, sides = flat[numbers], sides[numbers].prod(1), sides[numbers]
    least = iou_threshold - 1e-4  # what float32 may make of an overlap
    reach = position + (1 - least) / least * (sides[:, 0] + _SLANT * sides[:, 1])
    duplicates = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
    first, shift, compared = torch.arange(len(numbers), device=flat.device), 0, 0
    while len(first):
        shift += 1
        compared += len(first)
        if compared > _MOST_NEIGHBORS * len(numbers):  # so crowded that suppression itself has little to compare
            return torch.ones_like(duplicates).view(boxes.shape[:2])
        first = first[first < len(numbers) - shift]
        first = first[position[first + shift] <= reach[first]]
        second = first + shift
        shared = torch.minimum(corners[first, 2:], corners[second, 2:]) - torch.maximum(
            corners[first, :2], corners[second, :2]
        )
        common = shared.clamp(min=0).prod(1)
        equal = common > least * (areas[first] + areas[second] - common)
        duplicates[numbers[first[equal]]] = True
        duplicates[numbers[second[equal]]] = True
    return duplicates.view(boxes.shape[:2])
