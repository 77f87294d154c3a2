"""Suppression of a whole batch in tensors of fixed shape, without data-dependent steps.

Used in exported graphs, and on GPUs without synchronization. Only the best candidates are considered
(`candidate_count`); if more could matter, the result is flagged as incomplete and may differ from the exact one
(`image_by_image`). Equal scores may come in another order.

Dimensions: B batch, A anchors, K foreground classes, n candidates, D detections (padded).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxwright.nn.ops.boxes import box_area, clip_boxes
from boxwright.nn.suppression.image_by_image import bounded

_LEAST_CANDIDATES = 1024
_CANDIDATES_PER_DETECTION = 8
_ROUNDS = 16  # chains of overlaps are rarely longer than a few
_LARGEST_COUNT_IN_HALF = 1 << 11
_MOST_PAIRS = 1 << 26  # over all images: a few tables of a quarter of a gigabyte

# Lowers scores as `lowered_linearly` does.
Lower = Callable[["Selection", float, float], "Selection"]
# The signature of the operator `boxwright::suppress_pairs`.
SuppressPairs = Callable[[Tensor, Tensor, Tensor, int, float, int], Tensor]
# The same, which also returns whether the result is exact, bool [B].
CheckedPairs = Callable[[Tensor, Tensor, Tensor, int, float, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Candidates:
    """The best pairs of anchor and class of a batch, best first.

    Attributes:
        boxes: float32 [B, n, 4].
        scores: float32 [B, n].
        labels: int64 [B, n].
        anchors: int64 [B, n].
        passing: bool [B, n]; whether each score is above the threshold.
        more: bool [B]; whether other pairs are above the threshold too.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    anchors: Tensor
    passing: Tensor
    more: Tensor
    num_classes: int

    @property
    def same_class(self) -> Tensor:
        """Whether two candidates have the same class, bool [B, n, n]."""
        return _same(self.labels)

    @property
    def better(self) -> Tensor:
        """Whether the first of two candidates is better, bool [n, n]."""
        return _is_better(self.scores)

    def keeping(self, kept: Tensor, *, scores: Tensor | None = None) -> Selection:
        """Return a selection by bool [B, n], optionally with other scores."""
        return Selection(self.boxes, self.scores if scores is None else scores, self.labels, self.anchors, kept)


@dataclass(frozen=True)
class Selection:
    """Candidates [B, n] and which of them are kept, in any order; fields as in `Candidates`."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    anchors: Tensor
    kept: Tensor

    def at(self, order: Tensor) -> Selection:
        """Return the rows int64 [B, m] of each image."""
        return Selection(
            self.boxes.gather(1, order[..., None].expand(-1, -1, 4)),
            self.scores.gather(1, order),
            self.labels.gather(1, order),
            self.anchors.gather(1, order),
            self.kept.gather(1, order),
        )

    def sorted(self, count: int) -> Selection:
        """Return the kept rows, best first, cut to `count`."""
        count = min(count, self.scores.shape[1])
        return self.at(torch.where(self.kept, self.scores, -torch.inf).topk(count, dim=1).indices)

    def front(self, count: int) -> Selection:
        """Return the kept rows first, in their current order, cut to `count`."""
        places = torch.arange(self.scores.shape[1], 0, -1, device=self.scores.device, dtype=torch.float32)
        return self.at((self.kept * places).topk(min(count, self.scores.shape[1]), dim=1).indices)

    def padded(self, count: int) -> Selection:
        """Return `count` rows, padded with 0."""
        more = count - self.scores.shape[1]
        pad = torch.nn.functional.pad
        return Selection(
            pad(self.boxes * self.kept[..., None], (0, 0, 0, more)),
            pad(torch.where(self.kept, self.scores, 0.0), (0, more)),
            pad(self.labels * self.kept, (0, more)),
            pad(self.anchors * self.kept, (0, more)),
            pad(self.kept, (0, more)),
        )


def candidate_count(max_total: int) -> int:
    """Return the number of candidates for a maximum of detections per image."""
    return max(_LEAST_CANDIDATES, 1 << (_CANDIDATES_PER_DETECTION * max_total - 1).bit_length())


def fits_on_gpu(scores: Tensor, max_total: int) -> bool:
    """Return whether a table of all pairs of an image's candidates, of scores [B, A, K], is small enough for a GPU."""
    count = min(candidate_count(max_total), scores.shape[1] * scores.shape[2])
    return count**2 <= _MOST_PAIRS


def best_candidates(boxes: Tensor, scores: Tensor, score_threshold: float, count: int) -> Candidates:
    """Return the best pairs, at most `count` per image.

    Args:
        boxes: float32 [B, A, 4], or [B, A, K, 4].
        scores: float32 [B, A, K].
    """
    rows = min(count, scores.shape[1])
    # The best n pairs lie in the n anchors whose best class scores highest. They are ordered by class, then anchor: if
    # the first of equal scores is taken, as in ONNX, it is TensorFlow's.
    likely = scores.amax(dim=2).topk(rows, dim=1).indices.sort(dim=1).values
    pool = scores.gather(1, likely[..., None].expand(-1, -1, scores.shape[2])).transpose(1, 2).flatten(1)
    best, pairs = pool.topk(min(count, pool.shape[1]), dim=1)
    anchors, labels = likely.gather(1, pairs % rows), pairs // rows
    rows_of = torch.arange(scores.shape[0], device=scores.device)[:, None]
    picked = boxes[rows_of, anchors, labels] if boxes.ndim == 4 else boxes[rows_of, anchors]
    picked = bounded(picked)
    passing = (best > score_threshold) & (best >= 0)
    more = passing[:, -1] & (scores.shape[1] * scores.shape[2] > best.shape[1])
    return Candidates(picked, best, labels, anchors, passing, more, scores.shape[2])


def best_class_only(scores: Tensor) -> Tensor:
    """Return scores [B, A, K] with all but each anchor's best set to minus infinity."""
    scores = torch.where(scores == scores.amax(2, keepdim=True), scores, -torch.inf)
    # Only the first of tied classes.
    return torch.where((scores > -torch.inf).cumsum(2) == 1, scores, -torch.inf)


def per_class(
    candidates: Candidates, suppress_pairs: SuppressPairs, iou_threshold: float, max_per_class: int
) -> Selection:
    """Return the result of suppressing each class separately."""
    scores = torch.where(candidates.passing, candidates.scores, -1.0)
    kept = suppress_pairs(
        candidates.boxes, scores, candidates.labels, candidates.num_classes, iou_threshold, max_per_class
    )
    return candidates.keeping(kept)


def class_agnostic(
    candidates: Candidates, suppress_pairs: SuppressPairs, iou_threshold: float, max_total: int
) -> Selection:
    """Return the result of suppressing across classes, from scores of `best_class_only`."""
    scores = torch.where(candidates.passing, candidates.scores, -1.0)
    # The image's cap comes before clipping, which drops without replacement.
    kept = suppress_pairs(candidates.boxes, scores, torch.zeros_like(candidates.labels), 1, iou_threshold, max_total)
    return candidates.keeping(kept)


def soft(candidates: Candidates, sigma: float, score_threshold: float, max_per_class: int) -> Selection:
    """Return candidates with scores lowered by overlaps with better boxes of their class."""
    overlaps, same, better = _overlaps(candidates.boxes), candidates.same_class, candidates.better
    factors = torch.where(same, torch.exp(-0.5 / sigma * overlaps.square()), 1.0)
    scores = torch.where(candidates.passing, candidates.scores, -torch.inf)
    left, chosen = scores, torch.full_like(scores, -torch.inf)
    for _ in range(min(max_per_class, scores.shape[1])):
        # The best remaining candidate of each class, for all classes at once: none is better, or equal and earlier.
        rival = torch.where(same, left[:, None, :], -torch.inf)
        best = (left > score_threshold) & (rival.amax(2) <= left)
        earlier = (best[:, None, :] & same & better.T).any(2)
        best = best & ~earlier
        chosen = torch.where(best, left, chosen)
        lowered = torch.where(best[:, :, None], factors, 1.0).prod(1)
        left = torch.where(best | (left == -torch.inf), -torch.inf, left * lowered)
    kept = chosen > -torch.inf
    return candidates.keeping(kept, scores=torch.where(kept, chosen, 0.0))


def voting(candidates: Candidates, iou_threshold: float, least_members: int) -> Selection:
    """Return the boxes of each class merged by voting."""
    return _ballot(candidates, iou_threshold, least_members)[0]


def soft_voting(candidates: Candidates, iou_threshold: float, score_threshold: float) -> Selection:
    """Return boxes merged by voting and the boxes themselves, with scores lowered by overlaps with the best."""
    merged, joins, overlaps = _ballot(candidates, iou_threshold, 1)
    crowded = (joins.sum(2, keepdim=True) > 1) & joins
    lowered = candidates.scores * (1 - (overlaps * joins).sum(1))
    stays = crowded.any(1) & (lowered >= score_threshold)
    own = candidates.keeping(stays, scores=lowered)
    return Selection(*(torch.cat([getattr(merged, name), getattr(own, name)], 1) for name in vars(merged)))


def _ballot(candidates: Candidates, iou_threshold: float, least_members: int) -> tuple[Selection, Tensor, Tensor]:
    """Return the leaders' means; which box votes for which leader, bool [B, leader, box]; and overlaps."""
    overlaps, same, better = _overlaps(candidates.boxes), candidates.same_class, candidates.better
    itself = torch.eye(overlaps.shape[1], device=overlaps.device, dtype=torch.bool)
    overlaps = torch.where(itself, 1.0, overlaps)
    near = same & ((overlaps >= iou_threshold) | itself)
    leads = _kept_in_rounds(candidates.passing, near & better)
    # A box votes for the first leader that it overlaps.
    joins = near & leads[:, :, None] & candidates.passing[:, None, :] & (better | itself)
    joins = joins & (joins.cumsum(1) == 1)
    weights = joins * candidates.scores[:, None, :].clamp(min=0)
    means = torch.bmm(weights, candidates.boxes) / weights.sum(2, keepdim=True).clamp(min=1e-12)
    merged = replace(candidates.keeping(leads & (joins.sum(2) >= least_members)), boxes=means)
    return merged, joins, overlaps


def clipped(selection: Selection, windows: Tensor, outside: str) -> Selection:
    """Return boxes clipped to windows (height, width) float32 [B, 2], without boxes left without area.

    Args:
        outside: As in `postprocessing.nms.Nms`.
    """
    if outside == "unclipped":
        return selection
    if outside == "keep":
        high = torch.minimum(selection.boxes[..., 2:], windows.flip(1)[:, None])
        return replace(selection, boxes=torch.cat([selection.boxes[..., :2].clamp(min=0), high], -1))
    boxes = clip_boxes(selection.boxes, windows[:, :1], windows[:, 1:])
    return replace(selection, boxes=boxes, kept=selection.kept & (box_area(boxes) > 0))


def lowered_linearly(selection: Selection, iou_threshold: float, score_threshold: float) -> Selection:
    """Return the sorted result of `image_by_image.lowered_linearly`."""
    scores, kept = selection.scores, selection.kept
    overlaps = _overlaps(selection.boxes)
    lowers = (overlaps > iou_threshold) & _same(selection.labels) & kept[:, :, None]
    factors, left = torch.where(lowers, 1 - overlaps, 1.0), kept
    for _ in range(scores.shape[1]):
        best = torch.where(left, scores, -torch.inf).argmax(1, keepdim=True)
        left = left.scatter(1, best, False)
        factor = factors.gather(1, best[..., None].expand(-1, -1, scores.shape[1])).squeeze(1)
        scores = torch.where(left, scores * factor, scores)
    lowered = replace(selection, scores=scores, kept=kept & (scores >= score_threshold))
    return lowered.sorted(scores.shape[1])


def lowered_in_checked_rounds(
    selection: Selection, iou_threshold: float, score_threshold: float
) -> tuple[Selection, Tensor]:
    """Return `lowered_linearly`'s result up to the rounding of products, and bool [B]: whether the rounds sufficed.

    Scores only fall, so a box that scores above all boxes it overlaps is final: all such boxes are settled in one
    round, not the best alone.
    """
    scores, left = selection.scores, selection.kept
    overlaps = _overlaps(selection.boxes)
    itself = torch.eye(overlaps.shape[1], device=overlaps.device, dtype=torch.bool)
    lowers = (overlaps > iou_threshold) & _same(selection.labels) & left[:, :, None] & ~itself
    factors = torch.where(lowers, 1 - overlaps, 1.0)
    for _ in range(_ROUNDS):
        waiting = torch.where(left, scores, -torch.inf)
        rivals = torch.where(lowers, waiting[:, :, None], -torch.inf).amax(1)
        # Of equal scores neither is above the other: the rounds then do not suffice.
        done = waiting > rivals
        left = left & ~done
        lowered = torch.where(done[:, :, None], factors, 1.0).prod(1)
        scores = torch.where(left, scores * lowered, scores)
    ranked = replace(selection, scores=scores, kept=selection.kept & (scores >= score_threshold))
    return ranked.sorted(scores.shape[1]), ~left.any(1)


def suppress_in_rounds(
    boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float, max_per_class: int
) -> Tensor:
    """Return `boxwright::suppress_pairs`'s result, if chains of overlaps are no longer than the rounds."""
    del num_classes
    rivals = _same(labels) & _is_better(scores)
    kept = _kept_in_rounds(scores >= 0, rivals & (_overlaps(boxes) > iou_threshold))
    better_ones = (rivals.to(torch.float32) * kept[:, :, None]).sum(1)
    return kept & (better_ones < max_per_class)


def suppress_in_checked_rounds(
    boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float, max_per_class: int
) -> tuple[Tensor, Tensor]:
    """Return `suppress_in_rounds`'s result, and bool [B]: whether it is exact, as one more round changes nothing.

    Images are taken in groups whose tables of pairs are small enough for a GPU.
    """
    del num_classes
    at_once = max(_MOST_PAIRS // max(scores.shape[1], 1) ** 2, 1)
    groups = [slice(first, first + at_once) for first in range(0, max(len(scores), 1), at_once)]
    parts = [_checked_rounds(boxes[g], scores[g], labels[g], iou_threshold, max_per_class) for g in groups]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([kept for kept, _ in parts]), torch.cat([certain for _, certain in parts])


def _checked_rounds(
    boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float, max_per_class: int
) -> tuple[Tensor, Tensor]:
    # The narrowest type that counts all candidates exactly: the tables are read in each round.
    dtype = torch.float16 if scores.shape[1] <= _LARGEST_COUNT_IN_HALF else torch.float32
    rivals, passing = _same(labels) & _is_better(scores), (scores >= 0).to(dtype)[:, None]
    beats = (rivals & (_overlaps(boxes) > iou_threshold)).to(dtype)

    def after_round(kept: Tensor) -> Tensor:
        """Return 1 for what passes, less one for each better one that stays and beats it."""
        return torch.baddbmm(passing, kept, beats, alpha=-1).relu_()

    kept = passing
    with torch.autocast(boxes.device.type, enabled=False):  # bfloat16 counts exactly to 256 only
        for _ in range(_ROUNDS):
            kept = after_round(kept)
        certain = (after_round(kept) == kept).all(2).squeeze(1)
        better_ones = torch.bmm(kept, rivals.to(dtype))
    return ((better_ones < max_per_class) & (kept > 0)).squeeze(1), certain


def _same(labels: Tensor) -> Tensor:
    """Return which pairs of labels int64 [B, n] are equal, bool [B, n, n]."""
    return labels[:, :, None] == labels[:, None, :]


def _overlaps(boxes: Tensor) -> Tensor:
    """Return the intersection over union of all pairs of boxes [B, n, 4], without in-place operations."""
    rows, columns = boxes[:, :, None], boxes[:, None]
    low, high = torch.maximum(rows[..., :2], columns[..., :2]), torch.minimum(rows[..., 2:], columns[..., 2:])
    sides = (high - low).clamp(min=0)
    shared, area = sides[..., 0] * sides[..., 1], box_area(boxes)
    return torch.where(shared > 0, shared / (area[:, :, None] + area[:, None] - shared), 0.0)


def _kept_in_rounds(passing: Tensor, beaten: Tensor) -> Tensor:
    """Return which candidates stay [B, n]: the unique solution of "stays unless a better one that stays beats it".

    All candidates are decided at once, repeatedly: after r rounds, everything that depends on chains of up to r
    overlaps is correct.
    """
    kept, beats = passing, beaten.to(torch.float32)
    for _ in range(_ROUNDS):
        kept = passing & (torch.bmm(kept[:, None].to(beats.dtype), beats).squeeze(1) == 0)
    return kept


def _is_better(scores: Tensor) -> Tensor:
    count = scores.shape[1]
    return torch.ones(count, count, dtype=torch.bool, device=scores.device).triu(1)
