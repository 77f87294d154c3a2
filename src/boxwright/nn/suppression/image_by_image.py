"""Exact suppression of one image, over increasing numbers of candidates until no more can matter.

Suppression is greedy: among overlapping boxes of a class, the one with the highest score stays. The order of the steps
determines which detections survive: each class is suppressed on unclipped boxes and capped, then boxes are clipped,
those left without area dropped, and the best of all classes kept (`multiclass_non_max_suppression` of the TF Object
Detection API). Voting merges the boxes of one class (Gidaris and Komodakis, 2015, section 5).

Dimensions: A anchors, K foreground classes, D detections, N boxes of one class, V voted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.base.device import in_float64
from boxwright.nn.ops.boxes import box_area, clip_boxes, pairwise_iou
from boxwright.nn.ops.gpu_kernels import has_kernels

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

    exact = bounded(in_float64(boxes))  # so that sums do not round the overlaps
    # Classes are offset so that they cannot overlap.
    span = exact.max() - exact.min() + 1
    offsets = (classes.to(exact.device) * span)[:, None]
    kept: Tensor = nms(exact + offsets, in_float64(scores), iou_threshold)
    return kept.to(boxes.device)


def suppress_images(boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float) -> Tensor:
    """Return the boxes kept within each class and image.

    Without Triton, each group of images is a call that synchronizes a GPU.

    Args:
        boxes: float [B, n, 4], xyxy.
        scores: float [B, n], best first.
        labels: int64 [B, n].
        iou_threshold: Boxes that overlap a kept one of their class by more are dropped.

    Returns:
        bool [B, n]: the boxes that stay.
    """
    batch, count = scores.shape
    if boxes.is_cuda and has_kernels():
        from boxwright.nn.suppression.bit_matrix import suppress_sorted

        return suppress_sorted(bounded(boxes), labels, torch.ones_like(labels, dtype=torch.bool), iou_threshold)
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


def rank_of_kept(kept: Tensor, labels: Tensor) -> Tensor:
    """Return how many earlier boxes of each one's class are kept, int64 [B, n], for bool and int64 [B, n]."""
    by_class, order = labels.sort(dim=1, stable=True)
    kept_by_class = kept.gather(1, order)
    before = kept_by_class.cumsum(1) - kept_by_class.long()
    first = torch.searchsorted(by_class, by_class)
    return torch.zeros_like(labels).scatter_(1, order, before - before.gather(1, first))


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
    """Return what `suppress_pairs` returns, for all images together."""
    # Pairs that take no part score below all others, and suppress none of them.
    kept = suppress_images(boxes, scores, labels, num_classes, iou_threshold) & (scores >= 0)
    if max_per_class >= scores.shape[1]:
        return kept
    return kept & (rank_of_kept(kept, labels) < max_per_class)


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


_FIRST_CANDIDATES = 1024
_FIRST_OF_A_CLASS = 256


@dataclass(frozen=True)
class KeptDetections:
    """The detections kept in one image, best first: boxes [D, 4], scores, labels and anchors [D]."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    anchors: Tensor

    def __getitem__(self, index: Tensor | slice) -> KeptDetections:
        """Return some of the rows."""
        return KeptDetections(self.boxes[index], self.scores[index], self.labels[index], self.anchors[index])


def incomplete_images(complete: Tensor) -> list[int]:
    """Return the images for which fixed shapes did not suffice, from bool [B]; synchronizes a GPU."""
    return [number for number, sufficed in enumerate(complete.cpu().tolist()) if not sufficed]


def per_class(
    boxes: Tensor,
    scores: Tensor,
    window: Tensor,
    *,
    score_threshold: float,
    iou_threshold: float,
    max_per_class: int,
    max_total: int,
    outside: str,
) -> KeptDetections:
    """Return the detections after suppressing each class separately.

    A pair of anchor and class is dropped only by better ones, so the result over the best n pairs is final; once they
    fill the image, or every class, the rest cannot change it.

    Args:
        boxes: float32 [A, 4], xyxy in pixels, unclipped; or [A, K, 4], a box for each class.
        scores: float32 [A, K], without background.
        window: float32 [2]; the (height, width) to which boxes are clipped.
        outside: As in `postprocessing.nms.Nms`.
    """
    kept = _pick(boxes, scores, torch.zeros(0, dtype=torch.int64, device=boxes.device))
    classes = scores.shape[1]
    for pairs in _candidates(scores, score_threshold):
        chosen = _pick(boxes, scores, pairs)
        order = suppress_classes(chosen.boxes, chosen.scores, chosen.labels, iou_threshold)
        order = order[rank_in_class(chosen.labels[order], classes) < max_per_class]
        chosen = chosen[order]
        kept = (_clip(chosen, window) if outside == "drop" else chosen)[:max_total]
        # If every class is full, no worse pair can matter.
        if len(kept.scores) == max_total or len(chosen.scores) >= classes * max_per_class:
            break
    return _inside_out(kept, window) if outside == "keep" else kept


def class_agnostic(
    boxes: Tensor, scores: Tensor, window: Tensor, *, score_threshold: float, iou_threshold: float, max_total: int
) -> KeptDetections:
    """Return detections suppressed across classes, with each box's best class; clipped boxes are not replaced."""
    best, labels = scores.max(dim=1)
    kept = _pick(boxes, scores, torch.zeros(0, dtype=torch.int64, device=boxes.device))
    for anchors in _candidates(best[:, None], score_threshold):
        chosen = _pick(boxes, scores, anchors * scores.shape[1] + labels[anchors])
        order = suppress_classes(chosen.boxes, chosen.scores, torch.zeros_like(chosen.labels), iou_threshold)
        kept = chosen[order][:max_total]
        if len(kept.scores) == max_total:
            break
    return _clip(kept, window)


def soft(
    boxes: Tensor,
    scores: Tensor,
    window: Tensor,
    *,
    score_threshold: float,
    sigma: float,
    max_per_class: int,
    max_total: int,
) -> KeptDetections:
    """Return detections with scores lowered by overlaps with better boxes of their class.

    Scores only fall, so a candidate left out cannot be selected while all selected ones score at least its initial
    score.
    """
    count = min(_FIRST_OF_A_CLASS, len(scores))
    while True:
        ranked, anchors = scores.T.sort(dim=1, descending=True, stable=True)
        indices, lowered = _soft_choice(
            _gather_boxes(boxes, anchors[:, :count]), ranked[:, :count], sigma, max_per_class
        )
        valid = lowered > max(score_threshold, 0.0)
        left_out = ranked[:, count] if count < len(scores) else ranked.new_full((len(ranked),), -torch.inf)
        lowest = torch.where(valid, lowered, torch.inf).min(dim=1).values
        filled = valid.all(dim=1)
        # In a class that is not full, candidates left out could be added.
        done = (left_out <= score_threshold) | (filled & (lowest >= left_out))
        if bool(done.all()):
            break
        count = min(count * 4, len(scores))
    labels, positions = valid.nonzero(as_tuple=True)
    chosen = _pick(boxes, scores, anchors[labels, indices[labels, positions]] * scores.shape[1] + labels)
    chosen = KeptDetections(chosen.boxes, lowered[labels, positions], chosen.labels, chosen.anchors)
    return _clip(chosen[chosen.scores.argsort(descending=True, stable=True)], window)[:max_total]


def _soft_choice(boxes: Tensor, scores: Tensor, sigma: float, max_output: int) -> tuple[Tensor, Tensor]:
    """Repeatedly select the best box of each class and lower the scores of boxes that overlap it.

    Args:
        boxes: float [K, n, 4], xyxy.
        scores: float [K, n].
        max_output: The maximum of boxes per class.

    Returns:
        int64 [K, m], the selected boxes, best first; and their lowered scores.
    """
    left, boxes = scores.clone(), bounded(boxes)
    classes = torch.arange(len(scores), device=scores.device)
    indices, chosen = [], []
    for _ in range(min(max_output, scores.shape[1])):
        best, index = left.max(dim=1)
        indices.append(index)
        chosen.append(best)
        overlap = pairwise_iou(boxes[classes, index][:, None], boxes).squeeze(1)
        left *= torch.exp(-0.5 / sigma * overlap.square())
        left[classes, index] = -torch.inf
    if not chosen:
        return classes.new_zeros(len(scores), 0), scores.new_zeros(len(scores), 0)
    return torch.stack(indices, dim=1), torch.stack(chosen, dim=1)


def voting(
    boxes: Tensor,
    scores: Tensor,
    window: Tensor,
    *,
    merge: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
    score_threshold: float,
    max_total: int,
) -> KeptDetections:
    """Return the merged boxes of each class, unclipped.

    Args:
        boxes: float32 [A, 4], xyxy.
        scores: float32 [A, K]; those above the threshold take part.
        merge: As `voting.vote`.
    """
    del window
    candidates = _pick(boxes, scores, (scores.flatten() > score_threshold).nonzero().squeeze(1))
    parts = []
    for label in torch.unique(candidates.labels):
        mine = candidates[candidates.labels == label]
        merged, of, leaders = merge(mine.boxes, mine.scores)
        parts.append(KeptDetections(merged, of, label.expand(len(of)), mine.anchors[leaders]))
    if not parts:
        return candidates
    fields = ([getattr(part, name) for part in parts] for name in ("boxes", "scores", "labels", "anchors"))
    every = KeptDetections(*(torch.cat(values) for values in fields))
    return every[every.scores.argsort(descending=True, stable=True)][:max_total]


def lowered_linearly(kept: KeptDetections, iou_threshold: float, score_threshold: float) -> KeptDetections:
    """Return scores multiplied by 1 - IoU for each better box of their class that overlaps by more than a threshold.

    The order is updated after each step; boxes whose score falls below the other threshold are dropped.
    """
    overlaps = pairwise_iou(kept.boxes, kept.boxes)
    lowers = (overlaps > iou_threshold) & (kept.labels[:, None] == kept.labels)
    factors = torch.where(lowers, 1 - overlaps, 1.0)
    scores, left = kept.scores.clone(), torch.ones_like(kept.labels, dtype=torch.bool)
    for _ in range(len(scores)):
        best = torch.where(left, scores, -torch.inf).argmax()
        left[best] = False
        scores = torch.where(left, scores * factors[best], scores)
    order = scores.argsort(descending=True, stable=True)
    order = order[scores[order] >= score_threshold]
    return KeptDetections(kept.boxes[order], scores[order], kept.labels[order], kept.anchors[order])


def _candidates(scores: Tensor, threshold: float) -> Iterator[Tensor]:
    """Yield increasing numbers of the best pairs as flat indices into `scores` [A, K], best first.

    Of equal scores the lower class comes first, then the lower anchor, as in TensorFlow.
    """
    best, count = _max_over_classes(scores), _FIRST_CANDIDATES
    anchors = _passing(best, threshold).nonzero().squeeze(1)  # each has at least one pair that passes
    while count < len(anchors):
        # Scores below the threshold rank last, so the best n of all are the best n that pass.
        yield _ranked(scores, _best_pairs(scores, best, count))
        count *= 4
    rows, labels = _passing(scores[anchors], threshold).nonzero(as_tuple=True)
    while count < len(rows):
        yield _ranked(scores, _best_pairs(scores, best, count))
        count *= 4
    yield _ranked(scores, anchors[rows] * scores.shape[1] + labels)


def _max_over_classes(scores: Tensor) -> Tensor:
    """Return the best score of each anchor, float32 [A], from [A, K]; NaN does not count."""
    best = scores.amax(dim=1)
    return scores.masked_fill(scores.isnan(), -torch.inf).amax(dim=1) if bool(best.isnan().any()) else best


def _passing(scores: Tensor, threshold: float) -> Tensor:
    return scores > threshold if threshold >= 0 else scores >= 0


def _best_pairs(scores: Tensor, best: Tensor, count: int) -> Tensor:
    """Return the best n pairs; of ties for the last places the first, class by class.

    Only the few anchors that have such a pair are read again: all of a detector's scores are some megabytes.

    Args:
        best: float32 [A], the best score of each anchor.
    """
    # The best n pairs lie in the n anchors whose best class scores highest.
    highest = scores[best.topk(count, sorted=False).indices] if len(scores) > count else scores
    least = highest.flatten().topk(count, sorted=False).values.min()
    anchors = (best >= least).nonzero().squeeze(1)
    own = scores[anchors]
    rows, labels = (own > least).nonzero(as_tuple=True)
    tied_labels, tied_rows = (least == own.T).nonzero()[: count - len(rows)].unbind(1)
    return anchors[torch.cat([rows, tied_rows])] * scores.shape[1] + torch.cat([labels, tied_labels])


def _ranked(scores: Tensor, pairs: Tensor) -> Tensor:
    anchors, classes = scores.shape
    pairs = pairs[(pairs % classes * anchors + pairs // classes).argsort()] if classes > 1 else pairs
    return pairs[scores[pairs // classes, pairs % classes].argsort(descending=True, stable=True)]


def _pick(boxes: Tensor, scores: Tensor, pairs: Tensor) -> KeptDetections:
    anchors, labels = pairs // scores.shape[1], pairs % scores.shape[1]
    picked = boxes[anchors, labels] if boxes.ndim == 3 else boxes[anchors]
    return KeptDetections(picked, scores[anchors, labels], labels, anchors)


def _gather_boxes(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Return the boxes [K, n, 4] of anchors [K, n]."""
    if boxes.ndim == 2:
        return boxes[anchors]
    return boxes[anchors, torch.arange(len(anchors), device=anchors.device)[:, None]]


def _clip(kept: KeptDetections, window: Tensor) -> KeptDetections:
    """Return boxes clipped to the window, without those left without area."""
    clipped = clip_boxes(kept.boxes, window[0], window[1])
    return KeptDetections(clipped, kept.scores, kept.labels, kept.anchors)[box_area(clipped) > 0]


def _inside_out(kept: KeptDetections, window: Tensor) -> KeptDetections:
    """Return boxes clipped as in TF's combined operation, which keeps boxes outside the window, inverted."""
    low, high = kept.boxes[:, :2].clamp(min=0), torch.minimum(kept.boxes[:, 2:], window.flip(0))
    return KeptDetections(torch.cat([low, high], dim=1), kept.scores, kept.labels, kept.anchors)
