"""Multiclass non-maximum suppression with TensorFlow's semantics.

The order of things decides which detections survive: each class is suppressed on unclipped boxes
and capped, then boxes are clipped, those left without area dropped, and the best of all classes
kept. (`multiclass_non_max_suppression` of the TF Object Detection API.)

Dimensions: B batch, A anchors, K foreground classes, D detections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from boxwright.ops.boxes import box_area, clip_boxes
from boxwright.ops.nms import soft_suppress_classes, suppress_classes

__all__ = ["BatchNms", "ClassAgnosticNms", "CombinedNms", "Kept", "Nms", "SoftNms"]

_FIRST_CANDIDATES = 1024
_FIRST_OF_A_CLASS = 256


@dataclass(frozen=True)
class Kept:
    """What suppression left of one image, best first.

    Attributes:
        boxes: float32 [D, 4], clipped, xyxy in pixels of the network's input.
        scores: float32 [D].
        labels: int64 [D].
        anchors: int64 [D]; which anchor each came from.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    anchors: Tensor


class Nms(Protocol):
    """Suppresses each image of a batch."""

    def __call__(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> list[Kept]:
        """Suppress.

        Args:
            boxes: float32 [B, A, 4], xyxy in pixels, unclipped; or [B, A, K, 4], a box for each class.
            scores: float32 [B, A, K], without background.
            windows: float32 [B, 2]; the (height, width) to which boxes are clipped.

        Returns:
            B results.
        """
        ...


@dataclass(frozen=True)
class BatchNms:
    """Suppress each class by itself.

    Attributes:
        score_threshold: Only scores above it are looked at.
        iou_threshold: Boxes that overlap a better one of their class by more are dropped.
        max_detections_per_class: The most that each class keeps.
        max_total_detections: The most that an image keeps.
    """

    score_threshold: float = 0.0
    iou_threshold: float = 0.6
    max_detections_per_class: int = 100
    max_total_detections: int = 100

    def __call__(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> list[Kept]:
        """Suppress each image of a batch.

        Args:
            boxes: float32 [B, A, 4], xyxy in pixels, unclipped; or [B, A, K, 4], a box for each class.
            scores: float32 [B, A, K], without background.
            windows: float32 [B, 2]; the (height, width) to which boxes are clipped.

        Returns:
            B results.
        """
        return [self._image(*image) for image in zip(boxes, scores, windows, strict=True)]

    def _image(self, boxes: Tensor, scores: Tensor, window: Tensor) -> Kept:
        return self.search(boxes, scores, lambda kept: _clip(kept, window))

    def search(self, boxes: Tensor, scores: Tensor, finish: Callable[[Kept], Kept]) -> Kept:
        """Suppress among ever more of the best pairs of anchor and class, until no more can matter.

        A pair is dropped only by better ones, so what the best n pairs keep is final; once they
        fill the image, or every class, the rest cannot change the result.

        Args:
            boxes: float32 [A, 4] or [A, K, 4].
            scores: float32 [A, K].
            finish: What becomes of the pairs that stay, before the image's cap.

        Returns:
            The image's result.
        """
        kept = _nothing(boxes)
        for pairs in _candidates(scores, self.score_threshold):
            found = self.suppress(boxes, scores, pairs)
            kept = _first(finish(found), self.max_total_detections)
            if len(kept.scores) == self.max_total_detections or self.is_full(found, scores.shape[1]):
                break
        return kept

    def is_full(self, found: Kept, num_classes: int) -> bool:
        """Tell whether every class has all that it may keep, so that no worse pair can matter.

        Args:
            found: What suppression left, before clipping.
            num_classes: Classes, K.

        Returns:
            Whether that is so.
        """
        return len(found.scores) >= num_classes * self.max_detections_per_class

    def suppress(self, boxes: Tensor, scores: Tensor, pairs: Tensor) -> Kept:
        """Suppress among some pairs.

        Args:
            boxes: float32 [A, 4] or [A, K, 4].
            scores: float32 [A, K].
            pairs: int64 [n]; indices into the flat scores, best first.

        Returns:
            What stays, capped for each class, not clipped.
        """
        found = _pick(boxes, scores, pairs)
        order = suppress_classes(found.boxes, found.scores, found.labels, self.iou_threshold)
        order = order[_rank_in_class(found.labels[order], scores.shape[1]) < self.max_detections_per_class]
        return _select(found, order)


@dataclass(frozen=True)
class CombinedNms:
    """The same, as TF's combined operation ends it: boxes outside the window are kept, turned inside out.

    Attributes:
        per_class: Thresholds and caps.
    """

    per_class: BatchNms

    def __call__(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> list[Kept]:
        """Suppress each image of a batch.

        Args:
            boxes: float32 [B, A, 4], xyxy in pixels, unclipped; or [B, A, K, 4], a box for each class.
            scores: float32 [B, A, K], without background.
            windows: float32 [B, 2]; the (height, width) to which boxes are clipped.

        Returns:
            B results.
        """
        return [self._image(*image) for image in zip(boxes, scores, windows, strict=True)]

    def _image(self, boxes: Tensor, scores: Tensor, window: Tensor) -> Kept:
        kept = self.per_class.search(boxes, scores, lambda found: found)
        low, high = kept.boxes[:, :2].clamp(min=0), torch.minimum(kept.boxes[:, 2:], window.flip(0))
        return Kept(torch.cat([low, high], dim=1), kept.scores, kept.labels, kept.anchors)


@dataclass(frozen=True)
class SoftNms:
    """Lower the scores of boxes that overlap better ones of their class, rather than drop them.

    A score is multiplied with exp(-IoU² / (2 σ)) for each better box (Bodla et al., 2017, equation 3,
    whose σ is twice TF's). Detections carry the lowered scores.

    Attributes:
        sigma: How far the lowering reaches.
        score_threshold: Only scores above it, lowered or not, are looked at.
        max_detections_per_class: The most that each class keeps.
        max_total_detections: The most that an image keeps.
    """

    sigma: float
    score_threshold: float = 0.0
    max_detections_per_class: int = 100
    max_total_detections: int = 100

    def __call__(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> list[Kept]:
        """Suppress each image of a batch.

        Args:
            boxes: float32 [B, A, 4], xyxy in pixels, unclipped; or [B, A, K, 4], a box for each class.
            scores: float32 [B, A, K], without background.
            windows: float32 [B, 2]; the (height, width) to which boxes are clipped.

        Returns:
            B results.
        """
        return [self._image(*image) for image in zip(boxes, scores, windows, strict=True)]

    def _image(self, boxes: Tensor, scores: Tensor, window: Tensor) -> Kept:
        """Suppress among ever more of the best of each class, until no more can matter.

        Scores only fall, so a candidate that was left out cannot be chosen while all that are chosen
        score at least what it had at first.
        """
        count = min(_FIRST_OF_A_CLASS, len(scores))
        while True:
            ranked, anchors = scores.T.sort(dim=1, descending=True, stable=True)
            chosen = soft_suppress_classes(
                _boxes_of_classes(boxes, anchors[:, :count]),
                ranked[:, :count],
                self.sigma,
                max(self.score_threshold, 0.0),
                self.max_detections_per_class,
            )
            left_out = ranked[:, count] if count < len(scores) else ranked.new_full((len(ranked),), -torch.inf)
            lowest = torch.where(chosen.valid, chosen.scores, torch.inf).min(dim=1).values
            filled = chosen.valid.all(dim=1)
            # Where a class is not full, what was left out could fill it.
            done = (left_out <= self.score_threshold) | (filled & (lowest >= left_out))
            if bool(done.all()):
                break
            count = min(count * 4, len(scores))
        labels, positions = chosen.valid.nonzero(as_tuple=True)
        found = _pick(boxes, scores, anchors[labels, chosen.indices[labels, positions]] * scores.shape[1] + labels)
        found = Kept(found.boxes, chosen.scores[labels, positions], found.labels, found.anchors)
        order = found.scores.argsort(descending=True, stable=True)
        return _first(_clip(_select(found, order), window), self.max_total_detections)


@dataclass(frozen=True)
class ClassAgnosticNms:
    """Suppress whatever the class; each box has its best class alone.

    Attributes:
        score_threshold: Only scores above it are looked at.
        iou_threshold: Boxes that overlap a better one by more are dropped.
        max_total_detections: The most that an image keeps; boxes that clipping then drops are not replaced.
    """

    score_threshold: float = 0.0
    iou_threshold: float = 0.6
    max_total_detections: int = 100

    def __call__(self, boxes: Tensor, scores: Tensor, windows: Tensor) -> list[Kept]:
        """Suppress each image of a batch.

        Args:
            boxes: float32 [B, A, 4], xyxy in pixels, unclipped; or [B, A, K, 4], a box for each class.
            scores: float32 [B, A, K], without background.
            windows: float32 [B, 2]; the (height, width) to which boxes are clipped.

        Returns:
            B results.
        """
        return [self._image(*image) for image in zip(boxes, scores, windows, strict=True)]

    def _image(self, boxes: Tensor, scores: Tensor, window: Tensor) -> Kept:
        best, labels = scores.max(dim=1)
        kept = _nothing(boxes)
        for anchors in _candidates(best[:, None], self.score_threshold):
            found = _pick(boxes, scores, anchors * scores.shape[1] + labels[anchors])
            order = suppress_classes(found.boxes, found.scores, torch.zeros_like(found.labels), self.iou_threshold)
            kept = _first(_select(found, order), self.max_total_detections)
            if len(kept.scores) == self.max_total_detections:
                break
        return _clip(kept, window)


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


def _pick(boxes: Tensor, scores: Tensor, pairs: Tensor) -> Kept:
    anchors, labels = pairs // scores.shape[1], pairs % scores.shape[1]
    picked = boxes[anchors, labels] if boxes.ndim == 3 else boxes[anchors]
    return Kept(picked, scores.flatten()[pairs], labels, anchors)


def _boxes_of_classes(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Return the boxes [K, n, 4] of anchors [K, n]."""
    if boxes.ndim == 2:
        return boxes[anchors]
    return boxes[anchors, torch.arange(len(anchors), device=anchors.device)[:, None]]


def _select(kept: Kept, index: Tensor) -> Kept:
    return Kept(kept.boxes[index], kept.scores[index], kept.labels[index], kept.anchors[index])


def _first(kept: Kept, count: int) -> Kept:
    return Kept(kept.boxes[:count], kept.scores[:count], kept.labels[:count], kept.anchors[:count])


def _nothing(boxes: Tensor) -> Kept:
    empty = torch.zeros(0, dtype=torch.int64, device=boxes.device)
    return Kept(boxes.new_zeros(0, 4), boxes.new_zeros(0), empty, empty)


def _clip(kept: Kept, window: Tensor) -> Kept:
    """Clip to the window; drop what has no area left."""
    clipped = clip_boxes(kept.boxes, window[0], window[1])
    visible = box_area(clipped) > 0
    return _select(Kept(clipped, kept.scores, kept.labels, kept.anchors), visible)


def _rank_in_class(labels: Tensor, num_classes: int) -> Tensor:
    """Count, for each item, the earlier items of its class."""
    one_hot = torch.nn.functional.one_hot(labels, num_classes)
    return (one_hot.cumsum(0) - one_hot).gather(1, labels[:, None]).squeeze(1)
