"""What `boxwright::suppress` means, in tensors of fixed shape: the whole batch at once, no step that looks at data.

A graph that is exported has this in the operator's place: `exported.run_decompositions(decompositions())`; or, for a
runtime that has an operator for `boxwright::suppress_pairs`, `pair_decompositions()`. It looks at the best candidates
alone (`candidate_count`); where more could matter, the result says that it is not complete, and may differ from the
operator's. Equal scores may come in another order.

Dimensions: B batch, A anchors, K foreground classes, n candidates, D detections (padded).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from boxwright.ops.boxes import box_area, clip_boxes
from boxwright.ops.nms import suppress_images
from boxwright.ops.suppression import Rules, suppress, suppress_each

_LEAST_CANDIDATES = 1024
_CANDIDATES_PER_DETECTION = 8
_HARD = ("per_class", "class_agnostic")
_ROUNDS = 16  # chains of overlaps are seldom longer than a few
_MOST_PAIRS = 1 << 26  # of all images together: some tables of a quarter of a gigabyte
Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def candidate_count(max_total: int) -> int:
    """Return how many pairs of anchor and class are looked at, for the most detections that an image keeps."""
    return max(_LEAST_CANDIDATES, 1 << (_CANDIDATES_PER_DETECTION * max_total - 1).bit_length())


def suppress_in_tensors(
    boxes: Tensor,
    scores: Tensor,
    windows: Tensor,
    *arguments: Any,
    times: int = 1,
    pairs: Callable[..., Tensor] | None = None,
) -> Found:
    """Return what `boxwright::suppress` returns.

    Args:
        *arguments: The fields of `Rules`, in order.
        times: How many times `candidate_count` candidates to look at.
        pairs: Suppresses pairs; None for the operator `boxwright::suppress_pairs`.
    """
    rules = Rules(*arguments)
    candidates = _Candidates(boxes, scores, rules, times * candidate_count(rules.max_total))
    candidates.suppress_pairs = pairs or torch.ops.boxwright.suppress_pairs
    found = _padded(_lowered(_KINDS[rules.kind](candidates, windows, rules), rules), rules.max_total)
    boxes, scores, labels, anchors, kept = found
    complete = ~candidates.more
    if rules.kind in _HARD:  # a pair is dropped only by better ones: once the image is full the rest cannot change it
        complete = complete | kept.all(1)
    return boxes, scores, labels, anchors, kept, complete


def suppress_without_wait(boxes: Tensor, scores: Tensor, windows: Tensor, *arguments: Any) -> Found:
    """Return what `boxwright::suppress` of a hard kind returns, and ask the GPU nothing.

    An image is complete where nothing could matter that is not among its candidates, and one more round of suppression
    changes nothing: then what stays is right, however long the chains of overlaps are.

    Args:
        *arguments: The fields of `Rules`, in order.
    """
    settled: list[Tensor] = []

    def pairs(*given: Any) -> Tensor:
        kept, right = _settled_pairs(*given)
        settled.append(right)
        return kept

    *found, complete = suppress_in_tensors(boxes, scores, windows, *arguments, pairs=pairs)
    return (*found, complete & settled[0])  # type: ignore[return-value]


@suppress.register_kernel("cuda")
def suppress_on_cuda(boxes: Tensor, scores: Tensor, windows: Tensor, *arguments: Any) -> Found:
    """Return what `boxwright::suppress` returns, of all images together; the program waits twice.

    It waits for the pairs that stay, and for whether that is all: where more than the candidates could matter, images
    are suppressed one by one.

    Args:
        *arguments: The fields of `Rules`, in order.
    """
    rules = Rules(*arguments)
    if rules.kind in _HARD:
        found = suppress_in_tensors(boxes, scores, windows, *arguments, pairs=_pairs_of_all_images)
        if bool(found[-1].all()):
            return found
    return suppress_each(boxes, scores, windows, rules)


def _pairs_of_all_images(
    boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float, max_per_class: int
) -> Tensor:
    """Return what `boxwright::suppress_pairs` returns; a GPU is waited for once, not at each image."""
    # What takes no part scores below all that does, and suppresses nothing of it.
    kept = suppress_images(boxes, scores, labels, num_classes, iou_threshold) & (scores >= 0)
    if max_per_class >= scores.shape[1]:
        return kept
    own = torch.nn.functional.one_hot(labels, num_classes) * kept[..., None]
    return kept & ((own.cumsum(1) - own).gather(2, labels[..., None]).squeeze(2) < max_per_class)


def fits_on_gpu(scores: Tensor, rules: Rules) -> bool:
    """Return whether `suppress_without_wait` is for a kind of suppression, and what it takes fits into some memory."""
    count = min(candidate_count(rules.max_total), scores.shape[1] * scores.shape[2])
    return rules.kind in _HARD and len(scores) * count**2 <= _MOST_PAIRS


class _Candidates:
    """The best pairs of a batch, best first: boxes [B, n, 4], scores, labels, anchors and `passing` [B, n].

    `more` [B] says that there are others that pass.
    """

    suppress_pairs: Callable[..., Tensor]

    def __init__(self, boxes: Tensor, scores: Tensor, rules: Rules, count: int) -> None:
        if rules.kind == "class_agnostic":
            scores = torch.where(scores == scores.amax(2, keepdim=True), scores, -torch.inf)
            # Of classes that tie the first alone.
            scores = torch.where((scores > -torch.inf).cumsum(2) == 1, scores, -torch.inf)
        rows = min(count, scores.shape[1])
        # The best n pairs lie in the n anchors whose best class scores highest. They are laid class by class, anchors
        # in order: where of equal scores the first is taken, as in ONNX, it is the one that TensorFlow takes.
        likely = scores.amax(dim=2).topk(rows, dim=1).indices.sort(dim=1).values
        pool = scores.gather(1, likely[..., None].expand(-1, -1, scores.shape[2])).transpose(1, 2).flatten(1)
        self.scores, pairs = pool.topk(min(count, pool.shape[1]), dim=1)
        self.anchors, self.labels = likely.gather(1, pairs % rows), pairs // rows
        rows_of = torch.arange(scores.shape[0], device=scores.device)[:, None]
        picked = boxes[rows_of, self.anchors, self.labels] if boxes.ndim == 4 else boxes[rows_of, self.anchors]
        self.boxes = picked.nan_to_num(nan=0.0).clamp(-1e7, 1e7)
        self.passing = (self.scores > rules.score_threshold) & (self.scores >= 0)
        self.more = self.passing[:, -1] & (scores.shape[1] * scores.shape[2] > self.scores.shape[1])
        self.num_classes = scores.shape[2]

    @property
    def same(self) -> Tensor:
        """Whether two are of one class, bool [B, n, n]."""
        return self.labels[:, :, None] == self.labels[:, None, :]

    @property
    def better(self) -> Tensor:
        """Whether the first of two is the better one, bool [n, n]."""
        return _is_better(self.scores)


# Boxes, scores, labels, anchors, and which stay; in any order.
_Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _overlaps(boxes: Tensor) -> Tensor:
    """Return the intersection over union of all pairs of boxes [B, n, 4], by nothing that changes a tensor in place."""
    one, other = boxes[:, :, None], boxes[:, None]
    sides = (torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])).clamp(min=0)
    shared, area = sides[..., 0] * sides[..., 1], box_area(boxes)
    return torch.where(shared > 0, shared / (area[:, :, None] + area[:, None] - shared), 0.0)


def _stays(passing: Tensor, beaten: Tensor) -> Tensor:
    """Return which candidates stay [B, n]: the one solution of "stays unless a better one that stays beats it".

    It is found by asking of all at once, again and again: after r rounds everything that hangs on chains of up to r
    overlaps is right.
    """
    kept, beats = passing, beaten.to(torch.float32)
    for _ in range(_ROUNDS):
        kept = _round(kept, passing, beats)
    return kept


def _round(kept: Tensor, passing: Tensor, beats: Tensor) -> Tensor:
    return passing & (torch.bmm(kept[:, None].to(beats.dtype), beats).squeeze(1) == 0)


def _suppress_pairs(
    boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float, max_per_class: int
) -> Tensor:
    """Return what `boxwright::suppress_pairs` returns."""
    del num_classes
    rivals = (labels[:, :, None] == labels[:, None, :]) & _is_better(scores)
    kept = _stays(scores >= 0, rivals & (_overlaps(boxes) > iou_threshold))
    return kept & (_better_ones(rivals, kept) < max_per_class)


def _settled_pairs(
    boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float, max_per_class: int
) -> tuple[Tensor, Tensor]:
    """Return what `boxwright::suppress_pairs` returns; and where that is certain, bool [B]."""
    del num_classes
    rivals, passing = (labels[:, :, None] == labels[:, None, :]) & _is_better(scores), scores >= 0
    beaten = rivals & (_overlaps(boxes) > iou_threshold)
    kept = _stays(passing, beaten)
    settled = (_round(kept, passing, beaten.to(torch.float32)) == kept).all(1)
    return kept & (_better_ones(rivals, kept) < max_per_class), settled


def _better_ones(rivals: Tensor, kept: Tensor) -> Tensor:
    """Return how many of those that stay are better than each candidate, and of its class, [B, n]."""
    return (rivals.to(torch.float32) * kept[:, :, None]).sum(1)


def _is_better(scores: Tensor) -> Tensor:
    count = scores.shape[1]
    return torch.ones(count, count, dtype=torch.bool, device=scores.device).triu(1)


def _per_class(some: _Candidates, windows: Tensor, rules: Rules) -> _Found:
    scores = torch.where(some.passing, some.scores, -1.0)
    kept = some.suppress_pairs(
        some.boxes, scores, some.labels, some.num_classes, rules.iou_threshold, rules.max_per_class
    )
    return _clipped((some.boxes, some.scores, some.labels, some.anchors, kept), windows, rules)


def _class_agnostic(some: _Candidates, windows: Tensor, rules: Rules) -> _Found:
    scores = torch.where(some.passing, some.scores, -1.0)
    # The image's cap comes before clipping, which drops without replacement.
    kept = some.suppress_pairs(
        some.boxes, scores, torch.zeros_like(some.labels), 1, rules.iou_threshold, rules.max_total
    )
    return _clipped((some.boxes, some.scores, some.labels, some.anchors, kept), windows, rules)


def _soft(some: _Candidates, windows: Tensor, rules: Rules) -> _Found:
    overlaps, same, better = _overlaps(some.boxes), some.same, some.better
    factors = torch.where(same, torch.exp(-0.5 / rules.sigma * overlaps.square()), 1.0)
    scores = torch.where(some.passing, some.scores, -torch.inf)
    left, chosen = scores, torch.full_like(scores, -torch.inf)
    for _ in range(min(rules.max_per_class, scores.shape[1])):
        # The best that is left of each class, all classes at once: none of its class is better, or as good and earlier.
        rival = torch.where(same, left[:, None, :], -torch.inf)
        best = (left > rules.score_threshold) & (rival.amax(2) <= left)
        earlier = (best[:, None, :] & same & better.T).any(2)
        best = best & ~earlier
        chosen = torch.where(best, left, chosen)
        lowered = torch.where(best[:, :, None], factors, 1.0).prod(1)
        left = torch.where(best | (left == -torch.inf), -torch.inf, left * lowered)
    kept = chosen > -torch.inf
    return _clipped((some.boxes, torch.where(kept, chosen, 0.0), some.labels, some.anchors, kept), windows, rules)


def _voting(*, soft: bool = False, least_members: int = 1) -> _Kind:
    def run(some: _Candidates, windows: Tensor, rules: Rules) -> _Found:
        del windows
        overlaps, same, better = _overlaps(some.boxes), some.same, some.better
        itself = torch.eye(overlaps.shape[1], device=overlaps.device, dtype=torch.bool)
        overlaps = torch.where(itself, 1.0, overlaps)
        near = same & ((overlaps >= rules.iou_threshold) | itself)
        leads = _stays(some.passing, near & better)
        # A box votes with the first leader that it overlaps.
        joins = near & leads[:, :, None] & some.passing[:, None, :] & (better | itself)
        joins = joins & (joins.cumsum(1) == 1)
        weights = joins * some.scores[:, None, :].clamp(min=0)
        voted = torch.bmm(weights, some.boxes) / weights.sum(2, keepdim=True).clamp(min=1e-12)
        found = (voted, some.scores, some.labels, some.anchors, leads & (joins.sum(2) >= least_members))
        if not soft:
            return found
        crowded = (joins.sum(2, keepdim=True) > 1) & joins
        lowered = some.scores * (1 - (overlaps * joins).sum(1))
        stays = crowded.any(1) & (lowered >= rules.sigma)
        own = (some.boxes, lowered, some.labels, some.anchors, stays)
        return tuple(torch.cat(pair, 1) for pair in zip(found, own, strict=True))  # type: ignore[return-value]

    return run


_Kind = Callable[[_Candidates, Tensor, Rules], _Found]
_KINDS: dict[str, _Kind] = {
    "per_class": _per_class,
    "class_agnostic": _class_agnostic,
    "soft": _soft,
    "voting": _voting(),
    "voting_of_several": _voting(least_members=2),
    "soft_voting": _voting(soft=True),
}


def _clipped(found: _Found, windows: Tensor, rules: Rules) -> _Found:
    boxes, scores, labels, anchors, kept = found
    if rules.outside == "unclipped":
        return found
    if rules.outside == "keep":
        high = torch.minimum(boxes[..., 2:], windows.flip(1)[:, None])
        return torch.cat([boxes[..., :2].clamp(min=0), high], -1), scores, labels, anchors, kept
    clipped = clip_boxes(boxes, windows[:, :1], windows[:, 1:])
    return clipped, scores, labels, anchors, kept & (box_area(clipped) > 0)


def _sorted(found: _Found, count: int) -> _Found:
    """Bring what stays to the front, best first, and cut."""
    _, scores, _, _, kept = found
    count = min(count, scores.shape[1])
    order = torch.where(kept, scores, -torch.inf).topk(count, dim=1).indices
    return _picked(found, order)


def _picked(found: _Found, order: Tensor) -> _Found:
    boxes, scores, labels, anchors, kept = found
    return (
        boxes.gather(1, order[..., None].expand(-1, -1, 4)),
        scores.gather(1, order),
        labels.gather(1, order),
        anchors.gather(1, order),
        kept.gather(1, order),
    )


def _front(found: _Found, count: int) -> _Found:
    """Bring what stays to the front, in the order in which it is, and cut."""
    _, scores, _, _, kept = found
    places = torch.arange(scores.shape[1], 0, -1, device=scores.device, dtype=torch.float32)
    order = (kept * places).topk(min(count, scores.shape[1]), dim=1).indices
    return _picked(found, order)


def _lowered(found: _Found, rules: Rules) -> _Found:
    found = _front(found, rules.max_total) if rules.kind in _HARD else _sorted(found, rules.max_total)
    if rules.lowering_iou > 1:
        return found
    boxes, scores, labels, anchors, kept = found
    overlaps = _overlaps(boxes)
    lowers = (overlaps > rules.lowering_iou) & (labels[:, :, None] == labels[:, None, :]) & kept[:, :, None]
    factors, left = torch.where(lowers, 1 - overlaps, 1.0), kept
    for _ in range(scores.shape[1]):
        best = torch.where(left, scores, -torch.inf).argmax(1, keepdim=True)
        left = left.scatter(1, best, False)
        factor = factors.gather(1, best[..., None].expand(-1, -1, scores.shape[1])).squeeze(1)
        scores = torch.where(left, scores * factor, scores)
    return _sorted((boxes, scores, labels, anchors, kept & (scores >= rules.lowering_score)), rules.max_total)


def _padded(found: _Found, count: int) -> _Found:
    boxes, scores, labels, anchors, kept = found
    more = count - scores.shape[1]
    pad = torch.nn.functional.pad
    return (
        pad(boxes * kept[..., None], (0, 0, 0, more)),
        pad(torch.where(kept, scores, 0.0), (0, more)),
        pad(labels * kept, (0, more)),
        pad(anchors * kept, (0, more)),
        pad(kept, (0, more)),
    )


def pair_decompositions(times: int = 1) -> dict[Any, Callable[..., Any]]:
    """Return, for `torch.export`, what suppression means; `boxwright::suppress_pairs` stays, which runtimes have.

    Args:
        times: As for `suppress_in_tensors`.
    """
    return {torch.ops.boxwright.suppress.default: partial(suppress_in_tensors, times=times)}


def decompositions(times: int = 1) -> dict[Any, Callable[..., Any]]:
    """Return, for `torch.export`, what our operators of suppression mean.

    Args:
        times: As for `suppress_in_tensors`.
    """
    return {**pair_decompositions(times), torch.ops.boxwright.suppress_pairs.default: _suppress_pairs}
