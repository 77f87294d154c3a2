"""SSD's postprocessor: decode, convert scores, suppress (TF's SSDMetaArch.postprocess).

That of multi-step detectors (RefineDet, SRN, AlignDet) is SSD's on the last step. Only the best scores of each level
may be candidates of suppression (RetinaNet, SRN, AlignDet). Calibration curves convert scores to calibrated
probabilities; they apply to every column of scores, including the background's, as in TensorFlow.

Dimensions: B batch, A anchors, K foreground classes, C columns, N points of a curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from boxwright.base.device import constants
from boxwright.nn.ops.boxes import BoxCoder, KeypointBoxCoder
from boxwright.nn.postprocessing.nms import Nms, Suppress
from boxwright.types import AnchorPredictions, CascadePredictions, PaddedDetections, RawDetections


@dataclass(frozen=True)
class BestOfLevel:
    """Keep the best pairs of anchor and class of each level.

    Attributes:
        any_score_below_cells: Levels with fewer cells accept every score above 0 (SRN: 120).
        any_score_coarsest: The number of coarsest levels that do so too (AlignDet: 1).
    """

    count: int
    score_threshold: float = 0.0
    any_score_below_cells: int = 0
    any_score_coarsest: int = 0

    def __call__(self, scores: Tensor, grids: Sequence[tuple[int, int]], level_sizes: Sequence[int]) -> Tensor:
        """Return the scores, minus infinity for those that take no part.

        Args:
            scores: float [B, A, K], without background.
            grids: (height, width) of each level, finest first.
            level_sizes: The number of anchors of each level.
        """
        chosen = []
        for number, (part, (height, width)) in enumerate(
            zip(torch.split(scores, list(level_sizes), 1), grids, strict=True)
        ):
            # The coarsest levels have few cells, whose best boxes take part however little they score, as in the
            # releases.
            small = height * width < self.any_score_below_cells or number >= len(grids) - self.any_score_coarsest
            flat = part.flatten(1)
            best = flat.topk(min(self.count, flat.shape[1]), dim=1)
            kept = torch.where(best.values > (0.0 if small else self.score_threshold), best.values, -torch.inf)
            chosen.append(torch.full_like(flat, -torch.inf).scatter(1, best.indices, kept).view_as(part))
        return torch.cat(chosen, 1)


def identity(logits: Tensor) -> Tensor:
    """Return logits [..., C] unchanged."""
    return logits


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax over the last axis of logits [..., C]."""
    return torch.softmax(logits, dim=-1)


@dataclass(frozen=True)
class ScoreConverter:
    """Scale, convert and calibrate logits.

    Attributes:
        function: `identity`, `torch.sigmoid` or `softmax`.
        calibration: Applied to the scores; `identity` for none.
    """

    function: Callable[[Tensor], Tensor] = identity
    logit_scale: float = 1.0
    calibration: Callable[[Tensor], Tensor] = identity

    def __call__(self, logits: Tensor) -> Tensor:
        """Return scores [..., C]."""
        # No division by 1, which would be a pass over all logits.
        scaled = logits / self.logit_scale if self.logit_scale != 1.0 else logits
        return self.calibration(self.function(scaled))


Calibration = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class PiecewiseLinear:
    """Linear between points, and constant beyond the first and last."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __call__(self, scores: Tensor) -> Tensor:
        """Return the same shape."""
        x, y = scores.new_tensor(self.x), scores.new_tensor(self.y)
        right = torch.searchsorted(x, scores.contiguous(), right=True)
        left, right = (right - 1).clamp(min=0), right.clamp(max=len(x) - 1)
        span = x[right] - x[left]
        # Left of the first point and right of the last both ends are the same point.
        share = torch.where(span > 0, (scores - x[left]) / torch.where(span > 0, span, 1.0), 0.0)
        return y[left] + share * (y[right] - y[left])


@dataclass(frozen=True)
class SigmoidCurve:
    """Platt scaling: 1 / (1 + exp(a x + b)).

    Attributes:
        a: The slope; below 0 the order of scores is kept.
    """

    a: float = -1.0
    b: float = 0.0

    def __call__(self, scores: Tensor) -> Tensor:
        """Return the same shape."""
        return torch.sigmoid(-(self.a * scores + self.b))


@dataclass(frozen=True)
class ByColumn:
    """Curves for some columns; the others are unchanged."""

    curves: Mapping[int, Calibration]

    def __call__(self, scores: Tensor) -> Tensor:
        """Return [..., C]."""
        columns = list(scores.unbind(-1))
        for number, curve in self.curves.items():
            # As in TF, curves of ids that the detector lacks have no effect.
            if 0 <= number < len(columns):
                columns[number] = curve(columns[number])
        return torch.stack(columns, dim=-1)


@dataclass(frozen=True)
class AnchorPostprocessor:
    """Turn predictions into detections.

    Attributes:
        background: Columns before the foreground: 1 where column 0 is background, else 0.
        candidates: Selects the scores of each level that take part; None for all.
    """

    box_coder: BoxCoder
    score_converter: ScoreConverter
    nms: Nms
    background: int = 1
    candidates: BestOfLevel | None = None

    @torch.no_grad()
    def select(
        self,
        predictions: AnchorPredictions,
        raw: RawDetections,
        true_sizes: Tensor,
        suppress: Suppress = Nms.without_wait,
    ) -> PaddedDetections:
        """Return the detections after suppression, with their anchors' values; boxes are clipped to the true sizes."""
        scores = raw.scores[..., self.background :]
        if predictions.filtered is not None:
            # Below every threshold, also one of 0 or below.
            scores = scores.masked_fill(predictions.filtered[..., None], -torch.inf)
        if self.candidates is not None and predictions.level_sizes:
            grids = [(level.shape[-2], level.shape[-1]) for level in predictions.feature_maps]
            scores = self.candidates(scores, grids, predictions.level_sizes)
        # Where fixed shapes did not suffice, the result says so, and `fetch_detections` repeats it.
        detections = suppress(self.nms, raw.boxes, scores, true_sizes.to(raw.boxes))
        keypoints = self._keypoints(predictions)
        return replace(
            detections,
            multiclass_scores=of_anchors(raw.scores, detections.anchors),
            keypoints=None if keypoints is None else of_anchors(keypoints, detections.anchors),
            masks=None if predictions.masks is None else of_anchors(predictions.masks, detections.anchors),
        )

    def above(self, score: float) -> Self:
        """Return the same, in which scores below one do not enter suppression."""
        return replace(self, nms=self.nms.above(score))

    @property
    def suppression(self) -> Nms:
        """The suppression, which an exported graph may hold as one operator."""
        return self.nms

    @torch.no_grad()
    def decode(self, predictions: AnchorPredictions) -> RawDetections:
        """Return boxes and scores of all anchors."""
        unit = self._unit(predictions)
        # In float32: coordinates in half precision would be pixels off.
        boxes = self.box_coder.decode(predictions.box_codes.float(), predictions.anchors / unit) * unit
        scores = self.score_converter(predictions.class_logits.float())
        return RawDetections(boxes, scores, predictions.input_size)

    def _keypoints(self, predictions: AnchorPredictions) -> Tensor | None:
        if not isinstance(self.box_coder, KeypointBoxCoder):
            return None
        unit = self._unit(predictions)
        codes = predictions.box_codes.float()
        return self.box_coder.decode_keypoints(codes, predictions.anchors / unit) * unit[:2]

    def _unit(self, predictions: AnchorPredictions) -> Tensor:
        """Return the unit [4] in which boxes are coded: the input's size, or pixels for unit-free coders."""
        height, width = (1, 1) if self.box_coder.unit_free else predictions.input_size
        return constants([width, height, width, height], predictions.anchors.device)


def of_anchors(values: Tensor, anchors: Tensor) -> Tensor:
    """Return the rows [B, D, ...] of values [B, A, ...] that belong to anchors int64 [B, D]."""
    return values[torch.arange(anchors.shape[0], device=anchors.device)[:, None], anchors]


@dataclass(frozen=True)
class CascadePostprocessor:
    """Turn predictions into detections, without anchors that an earlier step filtered out.

    Attributes:
        detection: Decodes and suppresses the last step's predictions.
    """

    detection: AnchorPostprocessor

    def above(self, score: float) -> Self:
        """Return the same, in which scores below one do not enter suppression."""
        return replace(self, detection=self.detection.above(score))

    @property
    def suppression(self) -> Nms:
        """The suppression, which an exported graph may hold as one operator."""
        return self.detection.nms

    @torch.no_grad()
    def decode(self, predictions: CascadePredictions) -> RawDetections:
        """Return boxes and scores of all anchors."""
        return self.detection.decode(predictions.detection)

    @torch.no_grad()
    def select(
        self,
        predictions: CascadePredictions,
        raw: RawDetections,
        true_sizes: Tensor,
        suppress: Suppress = Nms.without_wait,
    ) -> PaddedDetections:
        """Return the padded detections after suppression, clipped to the true sizes."""
        return self.detection.select(predictions.detection, raw, true_sizes, suppress)
