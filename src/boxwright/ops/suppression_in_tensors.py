"""What `boxwright::suppress` means, in tensors of fixed shape: the whole batch at once, no step that looks at data.

A graph that is exported has this in the operator's place: `exported.run_decompositions(DECOMPOSITIONS)`. It looks at
the best `CANDIDATES` pairs of anchor and class; where more could matter, the result may differ from the operator's.
Equal scores may come in another order.

Dimensions: B batch, A anchors, K foreground classes, n candidates, D detections (padded).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from boxwright.ops.boxes import box_area, clip_boxes
from boxwright.ops.suppression import Rules

__all__ = ["CANDIDATES", "DECOMPOSITIONS", "suppress_in_tensors"]

CANDIDATES = 1024
_ROUNDS = 16  # chains of overlaps are seldom longer than a few
Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def suppress_in_tensors(boxes: Tensor, scores: Tensor, windows: Tensor, *arguments: Any) -> Found:
    """Return what `boxwright::suppress` returns.

    Args:
        boxes: As there.
        scores: As there.
        windows: As there.
        *arguments: The fields of `Rules`, in order.

    Returns:
        As there.
    """
    rules = Rules(*arguments)
    candidates = _Candidates(boxes, scores, rules)
    found = _KINDS[rules.kind](candidates, windows, rules)
    return _padded(_lowered(found, rules), rules.max_total)


class _Candidates:
    """The best pairs of a batch, best first: boxes [B, n, 4], scores, labels, anchors and `passing` [B, n]."""

    def __init__(self, boxes: Tensor, scores: Tensor, rules: Rules) -> None:
        if rules.kind == "class_agnostic":
            scores = torch.where(scores == scores.amax(2, keepdim=True), scores, -torch.inf)
            # Of classes that tie the first alone.
            scores = torch.where((scores > -torch.inf).cumsum(2) == 1, scores, -torch.inf)
        rows = min(CANDIDATES, scores.shape[1])
        # The best n pairs lie in the n anchors whose best class scores highest.
        likely = scores.amax(dim=2).topk(rows, dim=1).indices
        pool = scores.gather(1, likely[..., None].expand(-1, -1, scores.shape[2])).flatten(1)
        self.scores, pairs = pool.topk(min(CANDIDATES, pool.shape[1]), dim=1)
        self.anchors, self.labels = likely.gather(1, pairs // scores.shape[2]), pairs % scores.shape[2]
        rows_of = torch.arange(len(scores), device=scores.device)[:, None]
        picked = boxes[rows_of, self.anchors, self.labels] if boxes.ndim == 4 else boxes[rows_of, self.anchors]
        self.boxes = picked.nan_to_num(nan=0.0).clamp(-1e7, 1e7)
        self.passing = (self.scores > rules.score_threshold) & (self.scores >= 0)
        self.same = self.labels[:, :, None] == self.labels[:, None, :]
        count = self.scores.shape[1]
        self.better = torch.ones(count, count, dtype=torch.bool, device=scores.device).triu(1)


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
        kept = passing & (torch.bmm(kept[:, None].to(beats.dtype), beats).squeeze(1) == 0)
    return kept


def _hard(group: Callable[[_Candidates], Tensor], *, cap_classes: bool) -> _Kind:
    def run(some: _Candidates, windows: Tensor, rules: Rules) -> _Found:
        rivals = group(some) & some.better
        kept = _stays(some.passing, rivals & (_overlaps(some.boxes) > rules.iou_threshold))
        if cap_classes:
            before = (rivals.to(torch.float32) * kept[:, :, None]).sum(1)
            kept = kept & (before < rules.max_per_class)
        else:  # clipping comes after the image's cap, and drops without replacement
            kept = kept & (kept.cumsum(1) <= rules.max_total)
        return _clipped((some.boxes, some.scores, some.labels, some.anchors, kept), windows, rules)

    return run


def _soft(some: _Candidates, windows: Tensor, rules: Rules) -> _Found:
    overlaps = _overlaps(some.boxes)
    factors = torch.where(some.same, torch.exp(-0.5 / rules.sigma * overlaps.square()), 1.0)
    scores = torch.where(some.passing, some.scores, -torch.inf)
    left, chosen = scores, torch.full_like(scores, -torch.inf)
    for _ in range(min(rules.max_per_class, scores.shape[1])):
        # The best that is left of each class, all classes at once: none of its class is better, or as good and earlier.
        rival = torch.where(some.same, left[:, None, :], -torch.inf)
        best = (left > rules.score_threshold) & (rival.amax(2) <= left)
        earlier = (best[:, None, :] & some.same & some.better.T).any(2)
        best = best & ~earlier
        chosen = torch.where(best, left, chosen)
        lowered = torch.where(best[:, :, None], factors, 1.0).prod(1)
        left = torch.where(best | (left == -torch.inf), -torch.inf, left * lowered)
    kept = chosen > -torch.inf
    return _clipped((some.boxes, torch.where(kept, chosen, 0.0), some.labels, some.anchors, kept), windows, rules)


def _voting(*, soft: bool = False, least_members: int = 1) -> _Kind:
    def run(some: _Candidates, windows: Tensor, rules: Rules) -> _Found:
        del windows
        overlaps = _overlaps(some.boxes)
        itself = torch.eye(overlaps.shape[1], device=overlaps.device, dtype=torch.bool)
        overlaps = torch.where(itself, 1.0, overlaps)
        near = some.same & ((overlaps >= rules.iou_threshold) | itself)
        leads = _stays(some.passing, near & some.better)
        # A box votes with the first leader that it overlaps.
        joins = near & leads[:, :, None] & some.passing[:, None, :] & (some.better | itself)
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
    "per_class": _hard(lambda some: some.same, cap_classes=True),
    "class_agnostic": _hard(lambda some: torch.ones_like(some.same), cap_classes=False),
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
    boxes, scores, labels, anchors, kept = found
    order = torch.where(kept, scores, -torch.inf).argsort(dim=1, descending=True, stable=True)[:, :count]
    return (
        boxes.gather(1, order[..., None].expand(-1, -1, 4)),
        scores.gather(1, order),
        labels.gather(1, order),
        anchors.gather(1, order),
        kept.gather(1, order),
    )


def _lowered(found: _Found, rules: Rules) -> _Found:
    found = _sorted(found, rules.max_total)
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


def _padded(found: _Found, count: int) -> Found:
    boxes, scores, labels, anchors, kept = found
    more = count - scores.shape[1]
    pad = torch.nn.functional.pad
    return (
        pad(boxes * kept[..., None], (0, 0, 0, more)),
        pad(scores * kept, (0, more)),
        pad(labels * kept, (0, more)),
        pad(anchors * kept, (0, more)),
        pad(kept, (0, more)),
    )


# For `torch.export`: the operator to its meaning.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {torch.ops.boxwright.suppress.default: suppress_in_tensors}
