"""The postprocessor of queries that detect an object each: the best pairs of query and class, without suppression.

Dimensions: B batch, Q queries, K classes, D detections (padded), h w mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from boxwright.base.device import constants
from boxwright.nn.ops.boxes import clip_boxes, to_corners
from boxwright.nn.postprocessing.anchor import of_anchors
from boxwright.nn.postprocessing.nms import Nms, Suppress
from boxwright.types import PaddedDetections, RawDetections
from boxwright.types.detection_outputs import LITERT_KEPT_WITHOUT_STRIDED, LITERT_OUTPUTS


class Outputs(Protocol):
    """A class and a box of each query: logits float [B, Q, C], boxes float [B, Q, 4]."""

    @property
    def logits(self) -> Tensor: ...  # noqa: D102

    @property
    def boxes(self) -> Tensor: ...  # noqa: D102


class QueryPredictions(Protocol):
    """Predictions whose queries detect; boxes are center x, center y, width, height, in 0..1 of the input."""

    @property
    def detections(self) -> Outputs:
        """The outputs that detections are made of."""
        ...

    @property
    def input_size(self) -> tuple[int, int]:
        """The (height, width) of the input."""
        ...


@dataclass(frozen=True)
class QueryPostprocessor:
    """Turn predictions into detections; a query may be detected as several classes.

    Attributes:
        max_total_detections: The maximum per image, D.
        nms: Suppression, instead of the two others; None for none, as the network is meant.
        background: Columns of the logits before the first class, which are never detected.
    """

    max_total_detections: int = 300
    score_threshold: float = 0.0
    nms: Nms | None = None
    background: int = 0

    def lite_outputs(self, predictions: QueryPredictions) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the outputs of a graph for LiteRT, and those after them that only its comparison with ours reads."""
        del predictions
        return LITERT_OUTPUTS, LITERT_KEPT_WITHOUT_STRIDED

    def above(self, score: float) -> Self:
        """Return the same, in which scores below one do not enter suppression, if there is any."""
        return self if self.nms is None else replace(self, nms=self.nms.above(score))

    @torch.no_grad()
    def decode(self, predictions: QueryPredictions) -> RawDetections:
        """Return boxes and scores of all queries."""
        last = predictions.detections
        height, width = predictions.input_size
        unit = constants([width, height, width, height], last.boxes.device)
        # In float32: coordinates in half precision would be pixels off.
        return RawDetections(to_corners(last.boxes.float()) * unit, last.logits.float().sigmoid(), (height, width))

    @torch.no_grad()
    def select(
        self,
        predictions: QueryPredictions,
        raw: RawDetections,
        true_sizes: Tensor,
        suppress: Suppress = Nms.without_wait,
    ) -> PaddedDetections:
        """Return the best pairs of query and class, the query as the anchor; boxes are clipped to the true sizes."""
        del predictions
        sizes, of_classes = true_sizes.to(raw.boxes), raw.scores[..., self.background :]
        if self.nms is not None:
            detections = suppress(self.nms, raw.boxes, of_classes, sizes)
            return replace(detections, multiclass_scores=of_anchors(raw.scores, detections.anchors))
        classes, pairs = of_classes.shape[-1], of_classes.flatten(1)
        scores, places = pairs.topk(min(self.max_total_detections, pairs.shape[1]), dim=1)
        queries, labels = places // classes, places % classes
        boxes = clip_boxes(of_anchors(raw.boxes, queries), sizes[:, 0, None], sizes[:, 1, None])
        valid = scores > self.score_threshold
        return PaddedDetections(
            boxes * valid[..., None],
            scores * valid,
            labels * valid,
            queries * valid,
            valid,
            multiclass_scores=of_anchors(raw.scores, queries),
        )


class InstancePredictions(QueryPredictions, Protocol):
    """Predictions whose queries have a mask each, too."""

    def mask_logits(self, queries: Tensor) -> Tensor:
        """Return the masks [B, D, h, w] of queries, int64 [B, D], each of the whole input."""
        ...


@dataclass(frozen=True)
class InstancePostprocessor:
    """Turn predictions into detections with masks, which no box cuts off.

    Attributes:
        queries: Returns the detections without masks.
    """

    queries: QueryPostprocessor

    def above(self, score: float) -> Self:
        """Return the same, in which scores below one do not enter suppression, if there is any."""
        return replace(self, queries=self.queries.above(score))

    def decode(self, predictions: InstancePredictions) -> RawDetections:
        """Return boxes and scores of all queries."""
        return self.queries.decode(predictions)

    @torch.no_grad()
    def select(
        self,
        predictions: InstancePredictions,
        raw: RawDetections,
        true_sizes: Tensor,
        suppress: Suppress = Nms.without_wait,
    ) -> PaddedDetections:
        """Return the best pairs of query and class, with the masks of their queries; a mask covers the whole input."""
        detections = self.queries.select(predictions, raw, true_sizes, suppress)
        height, width = predictions.input_size
        covered = constants([0, 0, width, height], raw.boxes.device).expand_as(detections.boxes)
        masks = predictions.mask_logits(detections.anchors).float().sigmoid()
        return replace(detections, masks=masks, mask_boxes=covered)
