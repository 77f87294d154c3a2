"""Multiclass non-maximum suppression with TensorFlow's semantics.

The order of things decides which detections survive: each class is suppressed on unclipped boxes
and capped, then boxes are clipped, those left without area dropped, and the best of all classes
kept. (`multiclass_non_max_suppression` of the TF Object Detection API.)

Dimensions: B batch, A anchors, K foreground classes, D detections.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.ops.boxes import box_area, clip_boxes
from boxwright.ops.nms import suppress_classes

__all__ = ["BatchNms", "Kept"]

_FIRST_CANDIDATES = 4096


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


@dataclass(frozen=True)
class BatchNms:
    """Suppress, clip and cap.

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
            boxes: float32 [B, A, 4], xyxy in pixels, unclipped.
            scores: float32 [B, A, K], without background.
            windows: float32 [B, 2]; the (height, width) to which boxes are clipped.

        Returns:
            B results.
        """
        return [self._image(*image) for image in zip(boxes, scores, windows, strict=True)]

    def _image(self, boxes: Tensor, scores: Tensor, window: Tensor) -> Kept:
        """Suppress among ever more of the best pairs of anchor and class, until no more can matter.

        A pair is dropped only by better ones, so what the best n pairs keep is final; once they
        fill the image, the rest cannot change the result.
        """
        kept = None
        for pairs in self._candidates(scores):
            kept = self._suppress(boxes, scores, window, pairs)
            if len(kept.scores) == self.max_total_detections:
                break
        if kept is None:
            raise ValueError("no candidates were tried")
        return kept

    def _candidates(self, scores: Tensor) -> Iterator[Tensor]:
        flat = scores.flatten()
        above = torch.nonzero(flat > self.score_threshold).squeeze(1)
        count = _FIRST_CANDIDATES
        while count < len(above):
            yield above[flat[above].topk(count).indices]
            count *= 4
        yield above

    def _suppress(self, boxes: Tensor, scores: Tensor, window: Tensor, pairs: Tensor) -> Kept:
        anchors, labels = pairs // scores.shape[1], pairs % scores.shape[1]
        pair_scores, pair_boxes = scores.flatten()[pairs], boxes[anchors]
        order = suppress_classes(pair_boxes, pair_scores, labels, self.iou_threshold)
        order = order[_rank_in_class(labels[order], scores.shape[1]) < self.max_detections_per_class]
        clipped = clip_boxes(pair_boxes[order], window[0], window[1])
        visible = box_area(clipped) > 0
        order, clipped = order[visible], clipped[visible]
        order, clipped = order[: self.max_total_detections], clipped[: self.max_total_detections]
        return Kept(clipped, pair_scores[order], labels[order], anchors[order])


def _rank_in_class(labels: Tensor, num_classes: int) -> Tensor:
    """Count, for each item, the earlier items of its class."""
    one_hot = torch.nn.functional.one_hot(labels, num_classes)
    return (one_hot.cumsum(0) - one_hot).gather(1, labels[:, None]).squeeze(1)
