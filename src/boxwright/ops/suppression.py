"""Suppression of whole images, as one operator: `torch.ops.boxwright.suppress`.

The order of things decides which detections survive: each class is suppressed on unclipped boxes and capped, then
boxes are clipped, those left without area dropped, and the best of all classes kept
(`multiclass_non_max_suppression` of the TF Object Detection API).

The operator looks at data: it searches among ever more of the best candidates until no more can matter. What it means
in tensors of fixed shape, for graphs that hold no operators of ours, is `suppression_in_tensors`.

Dimensions: B batch, A anchors, K foreground classes, D detections (padded).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.ops.boxes import box_area, clip_boxes, pairwise_iou
from boxwright.ops.nms import rank_in_class, soft_suppress_classes, suppress_classes
from boxwright.ops.voting import soft_vote, vote

_FIRST_CANDIDATES = 1024
_FIRST_OF_A_CLASS = 256


@dataclass(frozen=True)
class Rules:
    """How an image is suppressed: the operator's arguments.

    Attributes:
        kind: A key of `_KINDS`.
        score_threshold: Only scores above it are looked at.
        iou_threshold: Boxes that overlap a better one by more are dropped, or vote with it.
        sigma: How far soft suppression reaches; or below which score soft voting drops boxes.
        max_per_class: The most that each class keeps.
        max_total: The most that an image keeps.
        outside: What becomes of boxes that clipping leaves without area: "drop"; "keep", turned inside out; or
            "unclipped", where nothing is clipped.
        lowering_iou: The overlap from which scores are lowered at the end (Bodla et al., 2017, equation 2); over 1
            for none.
        lowering_score: What is lowered below it is dropped.
    """

    kind: str = "per_class"
    score_threshold: float = 0.0
    iou_threshold: float = 0.6
    sigma: float = 0.0
    max_per_class: int = 100
    max_total: int = 100
    outside: str = "drop"
    lowering_iou: float = 2.0
    lowering_score: float = 0.0


@dataclass(frozen=True)
class _Kept:
    """What suppression left of one image, best first: boxes [D, 4], scores, labels and anchors [D]."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    anchors: Tensor

    def __getitem__(self, index: Tensor | slice) -> _Kept:
        return _Kept(self.boxes[index], self.scores[index], self.labels[index], self.anchors[index])


@torch.library.custom_op("boxwright::suppress", mutates_args=())
def suppress(  # noqa: PLR0913  # an operator takes plain values
    boxes: Tensor,
    scores: Tensor,
    windows: Tensor,
    kind: str,
    score_threshold: float,
    iou_threshold: float,
    sigma: float,
    max_per_class: int,
    max_total: int,
    outside: str,
    lowering_iou: float,
    lowering_score: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Suppress each image of a batch, and pad.

    Args:
        boxes: float32 [B, A, 4], xyxy in pixels, unclipped; or [B, A, K, 4], a box for each class.
        scores: float32 [B, A, K], without background.
        windows: float32 [B, 2]; the (height, width) to which boxes are clipped.
        kind: As in `Rules`, like what follows.

    Returns:
        Boxes float32 [B, D, 4], scores [B, D], labels and anchors int64 [B, D], valid bool [B, D], best first; 0
        where padded. And complete, bool [B]: that nothing which could matter was left out, which this form never does.
    """
    rules = Rules(
        kind,
        score_threshold,
        iou_threshold,
        sigma,
        max_per_class,
        max_total,
        outside,
        lowering_iou,
        lowering_score,
    )
    return suppress_each(boxes, scores, windows, rules)


def suppress_each(
    boxes: Tensor, scores: Tensor, windows: Tensor, rules: Rules
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return what the operator does, computed image by image; on a GPU each is waited for several times."""
    found = _empty(boxes, scores, rules.max_total)
    for number, image in enumerate(zip(boxes, scores, windows, strict=True)):
        kept = _lowered(_KINDS[rules.kind](*image, rules), rules)
        count = len(kept.scores)
        for into, values in zip(found, (kept.boxes, kept.scores, kept.labels, kept.anchors), strict=False):
            into[number, :count] = values
        found[4][number, :count] = True
    return found


@suppress.register_fake
def _(  # noqa: PLR0913  # as the operator
    boxes: Tensor,
    scores: Tensor,
    windows: Tensor,
    kind: str,
    score_threshold: float,
    iou_threshold: float,
    sigma: float,
    max_per_class: int,
    max_total: int,
    outside: str,
    lowering_iou: float,
    lowering_score: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty(boxes, scores, max_total)


def _empty(boxes: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch = scores.shape[0]
    return (
        boxes.new_zeros(batch, count, 4),
        scores.new_zeros(batch, count),
        scores.new_zeros(batch, count, dtype=torch.int64),
        scores.new_zeros(batch, count, dtype=torch.int64),
        scores.new_zeros(batch, count, dtype=torch.bool),
        scores.new_ones(batch, dtype=torch.bool),
    )


def _per_class(boxes: Tensor, scores: Tensor, window: Tensor, rules: Rules) -> _Kept:
    """Suppress among ever more of the best pairs of anchor and class, until no more can matter.

    A pair is dropped only by better ones, so what the best n pairs keep is final; once they
    fill the image, or every class, the rest cannot change the result.
    """
    kept = _pick(boxes, scores, torch.zeros(0, dtype=torch.int64, device=boxes.device))
    classes = scores.shape[1]
    for pairs in _candidates(scores, rules.score_threshold):
        found = _pick(boxes, scores, pairs)
        order = suppress_classes(found.boxes, found.scores, found.labels, rules.iou_threshold)
        order = order[rank_in_class(found.labels[order], classes) < rules.max_per_class]
        found = found[order]
        kept = (_clip(found, window) if rules.outside == "drop" else found)[: rules.max_total]
        # Where every class has all that it may keep, no worse pair can matter.
        if len(kept.scores) == rules.max_total or len(found.scores) >= classes * rules.max_per_class:
            break
    return _inside_out(kept, window) if rules.outside == "keep" else kept


def _class_agnostic(boxes: Tensor, scores: Tensor, window: Tensor, rules: Rules) -> _Kept:
    """Suppress whatever the class; each box has its best class alone. What clipping drops is not replaced."""
    best, labels = scores.max(dim=1)
    kept = _pick(boxes, scores, torch.zeros(0, dtype=torch.int64, device=boxes.device))
    for anchors in _candidates(best[:, None], rules.score_threshold):
        found = _pick(boxes, scores, anchors * scores.shape[1] + labels[anchors])
        order = suppress_classes(found.boxes, found.scores, torch.zeros_like(found.labels), rules.iou_threshold)
        kept = found[order][: rules.max_total]
        if len(kept.scores) == rules.max_total:
            break
    return _clip(kept, window)


def _soft(boxes: Tensor, scores: Tensor, window: Tensor, rules: Rules) -> _Kept:
    """Lower scores among ever more of the best of each class, until no more can matter.

    Scores only fall, so a candidate that was left out cannot be chosen while all that are chosen
    score at least what it had at first.
    """
    count = min(_FIRST_OF_A_CLASS, len(scores))
    while True:
        ranked, anchors = scores.T.sort(dim=1, descending=True, stable=True)
        chosen = soft_suppress_classes(
            _boxes_of_classes(boxes, anchors[:, :count]),
            ranked[:, :count],
            rules.sigma,
            max(rules.score_threshold, 0.0),
            rules.max_per_class,
        )
        left_out = ranked[:, count] if count < len(scores) else ranked.new_full((len(ranked),), -torch.inf)
        lowest = torch.where(chosen.valid, chosen.scores, torch.inf).min(dim=1).values
        filled = chosen.valid.all(dim=1)
        # Where a class is not full, what was left out could fill it.
        done = (left_out <= rules.score_threshold) | (filled & (lowest >= left_out))
        if bool(done.all()):
            break
        count = min(count * 4, len(scores))
    labels, positions = chosen.valid.nonzero(as_tuple=True)
    found = _pick(boxes, scores, anchors[labels, chosen.indices[labels, positions]] * scores.shape[1] + labels)
    found = _Kept(found.boxes, chosen.scores[labels, positions], found.labels, found.anchors)
    return _clip(found[found.scores.argsort(descending=True, stable=True)], window)[: rules.max_total]


def _voting(voted: Callable[[Tensor, Tensor, Rules], tuple[Tensor, Tensor, Tensor]]) -> _Kind:
    """Merge the boxes of each class by voting; what takes part is what has a score above the threshold."""

    def run(boxes: Tensor, scores: Tensor, window: Tensor, rules: Rules) -> _Kept:
        del window
        found = _pick(boxes, scores, (scores.flatten() > rules.score_threshold).nonzero().squeeze(1))
        parts = []
        for label in torch.unique(found.labels):
            mine = found[found.labels == label]
            mean, of, leaders = voted(mine.boxes, mine.scores, rules)
            parts.append(_Kept(mean, of, label.expand(len(of)), mine.anchors[leaders]))
        if not parts:
            return found
        fields = ([getattr(part, name) for part in parts] for name in ("boxes", "scores", "labels", "anchors"))
        merged = _Kept(*(torch.cat(values) for values in fields))
        return merged[merged.scores.argsort(descending=True, stable=True)][: rules.max_total]

    return run


_Kind = Callable[[Tensor, Tensor, Tensor, Rules], _Kept]
_KINDS: dict[str, _Kind] = {
    "per_class": _per_class,
    "class_agnostic": _class_agnostic,
    "soft": _soft,
    "voting": _voting(lambda boxes, scores, rules: vote(boxes, scores, rules.iou_threshold)),
    "voting_of_several": _voting(
        lambda boxes, scores, rules: vote(boxes, scores, rules.iou_threshold, least_members=2)
    ),
    "soft_voting": _voting(lambda boxes, scores, rules: soft_vote(boxes, scores, rules.iou_threshold, rules.sigma)),
}


def _lowered(kept: _Kept, rules: Rules) -> _Kept:
    """Multiply a score with 1 - IoU for each better box of its class that overlaps by more than a limit.

    What is better is decided anew after each lowering.
    """
    if rules.lowering_iou > 1:
        return kept
    overlaps = pairwise_iou(kept.boxes, kept.boxes)
    lowers = (overlaps > rules.lowering_iou) & (kept.labels[:, None] == kept.labels)
    factors = torch.where(lowers, 1 - overlaps, 1.0)
    scores, left = kept.scores.clone(), torch.ones_like(kept.labels, dtype=torch.bool)
    for _ in range(len(scores)):
        best = torch.where(left, scores, -torch.inf).argmax()
        left[best] = False
        scores = torch.where(left, scores * factors[best], scores)
    order = scores.argsort(descending=True, stable=True)
    order = order[scores[order] >= rules.lowering_score]
    return _Kept(kept.boxes[order], scores[order], kept.labels[order], kept.anchors[order])


def _candidates(scores: Tensor, threshold: float) -> Iterator[Tensor]:
    """Yield ever more of the best pairs as indices into `scores` [A, K], flat, best first.

    Of equal scores the lower class comes first, then the lower anchor, as in TensorFlow.
    """
    flat = scores.flatten()
    passing = flat > threshold if threshold >= 0 else flat >= 0
    total, count = int(torch.count_nonzero(passing)), _FIRST_CANDIDATES
    while count < total:
        # Failing scores are below all that pass, so the best n of all are the best n of those.
        yield _ranked(flat, _best_pairs(scores, count), scores.shape)
        count *= 4
    yield _ranked(flat, passing.nonzero().squeeze(1), scores.shape)


def _best_pairs(scores: Tensor, count: int) -> Tensor:
    """Return the best n pairs; of those that tie for the last places the first, class by class."""
    least = _nth_best(scores, count)
    better = (scores.flatten() > least).nonzero().squeeze(1)
    tied = (least == scores.T).flatten().nonzero().squeeze(1)[: count - len(better)]
    anchors, classes = scores.shape
    return torch.cat([better, tied % anchors * classes + tied // anchors])


def _nth_best(scores: Tensor, count: int) -> Tensor:
    """Return the score that ranks so among all of [A, K].

    The best n pairs lie in the n anchors whose best class scores highest, which are found much sooner.
    """
    if len(scores) > count:
        scores = scores[scores.amax(dim=1).topk(count, sorted=False).indices]
    return scores.flatten().topk(count, sorted=False).values.min()


def _ranked(flat: Tensor, pairs: Tensor, shape: torch.Size) -> Tensor:
    anchors, classes = shape
    pairs = pairs[(pairs % classes * anchors + pairs // classes).argsort()] if classes > 1 else pairs
    return pairs[flat[pairs].argsort(descending=True, stable=True)]


def _pick(boxes: Tensor, scores: Tensor, pairs: Tensor) -> _Kept:
    anchors, labels = pairs // scores.shape[1], pairs % scores.shape[1]
    picked = boxes[anchors, labels] if boxes.ndim == 3 else boxes[anchors]
    return _Kept(picked, scores.flatten()[pairs], labels, anchors)


def _boxes_of_classes(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Return the boxes [K, n, 4] of anchors [K, n]."""
    if boxes.ndim == 2:
        return boxes[anchors]
    return boxes[anchors, torch.arange(len(anchors), device=anchors.device)[:, None]]


def _clip(kept: _Kept, window: Tensor) -> _Kept:
    """Clip to the window; drop what has no area left."""
    clipped = clip_boxes(kept.boxes, window[0], window[1])
    return _Kept(clipped, kept.scores, kept.labels, kept.anchors)[box_area(clipped) > 0]


def _inside_out(kept: _Kept, window: Tensor) -> _Kept:
    """Clip as TF's combined operation does: what lies outside is turned inside out, and stays."""
    low, high = kept.boxes[:, :2].clamp(min=0), torch.minimum(kept.boxes[:, 2:], window.flip(0))
    return _Kept(torch.cat([low, high], dim=1), kept.scores, kept.labels, kept.anchors)
