"""Non-maximum suppression: of boxes that overlap, the best scored stays.

Dimensions: B batch, A boxes an image, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import nms

from boxwright.ops.boxes import pairwise_iou

# From this overlap on, boxes that overlap so much are looked for before they are compared by scores.
_NEARLY = 0.98
# And how many neighbours of each are looked at, on average.
_MOST_NEIGHBOURS = 40
# Of a box's place along a line across both axes: no grid of anchors has two cells at one place.
_SLANT = 0.7548776662
# Boxes that are suppressed together: greedy suppression notes each pair by a bit, here in an eighth of a gigabyte.
_MOST_TOGETHER = 1 << 15
_SPARE = 256  # candidates beyond twice of what an image keeps
_FARTHEST = 1e7  # pixels: no image is so large, and a hundred times that keeps its digits in double precision


def suppress_batch(boxes: Tensor, scores: Tensor, iou_threshold: float, max_output: int) -> Tensor:
    """Suppress within each image of a batch.

    Greedy suppression is sequential within an image; its cost is quadratic in the boxes that are
    compared, so images are suppressed apart. Near an overlap of 1, where hard example mining uses it, hardly any box
    overlaps another so much: those that do are found first, and only they are compared by scores.

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
    compared = _nearly_equal(boxes, iou_threshold) if iou_threshold >= _NEARLY else kept.clone()
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


def suppress_images(boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float) -> Tensor:
    """Suppress within each class of each image, by one call for as many images as fit; a GPU is waited for at each.

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


def _nearly_equal(boxes: Tensor, iou_threshold: float) -> Tensor:
    """Return bool [B, A]: boxes [B, A, 4] that may overlap another of their image by more than a threshold near 1.

    Two such boxes share more than that part of either's width and height, so their corners lie within
    (1 - t) / t of either's sides of each other. Sorted along a line across both axes, each is compared with those
    that follow it until they are too far.
    """
    flat = boxes.flatten(0, 1).double()
    sides = flat[:, 2:] - flat[:, :2]
    image = torch.arange(len(flat), device=flat.device) // max(boxes.shape[1], 1)
    usable = flat.isfinite().all(1) & (sides > 0).all(1)
    place = flat[:, 0] + _SLANT * flat[:, 1]
    span = (place[usable].max() - place[usable].min() + 1) if bool(usable.any()) else 1.0
    numbers = usable.nonzero().squeeze(1)
    place = place[numbers] + image[numbers] * 2 * span  # images apart
    order = place.argsort()
    numbers, place = numbers[order], place[order]
    corners, areas, sides = flat[numbers], sides[numbers].prod(1), sides[numbers]
    least = iou_threshold - 1e-4  # what float32 may make of an overlap
    reach = place + (1 - least) / least * (sides[:, 0] + _SLANT * sides[:, 1])
    found = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
    first, shift, looked = torch.arange(len(numbers), device=flat.device), 0, 0
    while len(first):
        shift += 1
        looked += len(first)
        if looked > _MOST_NEIGHBOURS * len(numbers):  # so crowded that suppression itself has little to compare
            return torch.ones_like(found).view(boxes.shape[:2])
        first = first[first < len(numbers) - shift]
        first = first[place[first + shift] <= reach[first]]
        second = first + shift
        shared = torch.minimum(corners[first, 2:], corners[second, 2:]) - torch.maximum(
            corners[first, :2], corners[second, :2]
        )
        common = shared.clamp(min=0).prod(1)
        equal = common > least * (areas[first] + areas[second] - common)
        found[numbers[first[equal]]] = True
        found[numbers[second[equal]]] = True
    return found.view(boxes.shape[:2])


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
    boxes = _within_reach(boxes.double())
    span = boxes.max() - boxes.min() + 1
    kept: Tensor = nms(boxes + (classes * span)[:, None], scores.double(), iou_threshold)
    return kept


def rank_in_class(labels: Tensor, num_classes: int) -> Tensor:
    """Count, for each item of int64 [N], the earlier items of its class."""
    one_hot = torch.nn.functional.one_hot(labels, num_classes)
    return (one_hot.cumsum(0) - one_hot).gather(1, labels[:, None]).squeeze(1)


@torch.library.custom_op("boxwright::suppress_pairs", mutates_args=())
def suppress_pairs(
    boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float, max_per_class: int
) -> Tensor:
    """Suppress among the best pairs of box and class of each image of a batch.

    An operator, as it looks at data; runtimes have one that means the same (ONNX's NonMaxSuppression), and
    `suppression_in_tensors` has its meaning in tensors of fixed shape.

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


def _within_reach(boxes: Tensor) -> Tensor:
    """Cut boxes that overflowed, of which one would spoil the arithmetic of all; those of no number become nothing."""
    return boxes.nan_to_num(nan=0.0).clamp(-_FARTHEST, _FARTHEST)


@dataclass(frozen=True)
class SoftChoice:
    """What soft suppression chose, best first.

    Attributes:
        indices: int64 [K, n]; which box each is.
        scores: float [K, n]; lowered.
        valid: bool [K, n]; False where fewer than n were left above the threshold.
    """

    indices: Tensor
    scores: Tensor
    valid: Tensor


def soft_suppress_classes(
    boxes: Tensor, scores: Tensor, sigma: float, score_threshold: float, max_output: int
) -> SoftChoice:
    """Choose the best box of each class, lower the scores of those that overlap it, and again.

    Args:
        boxes: float [K, A, 4], xyxy.
        scores: float [K, A].
        sigma: A score is multiplied with exp(-IoU² / (2 sigma)).
        score_threshold: Only scores above it are chosen.
        max_output: The most boxes that a class chooses.
    """
    left, boxes = scores.clone(), _within_reach(boxes)
    classes = torch.arange(len(scores), device=scores.device)
    indices, chosen = [], []
    for _ in range(min(max_output, scores.shape[1])):
        best, index = left.max(dim=1)
        indices.append(index)
        chosen.append(best)
        overlap = pairwise_iou(boxes[classes, index][:, None], boxes).squeeze(1)
        left *= torch.exp(-0.5 / sigma * overlap.square())
        left[classes, index] = -torch.inf
    lowered = torch.stack(chosen, dim=1) if chosen else scores.new_zeros(len(scores), 0)
    places = torch.stack(indices, dim=1) if indices else classes.new_zeros(len(scores), 0)
    return SoftChoice(places, lowered, lowered > score_threshold)
