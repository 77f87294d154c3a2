"""SSD's postprocessor: decode, convert scores, suppress (TF's SSDMetaArch.postprocess).

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxwright.nn.ops.box_coder import BoxCoder, KeypointBoxCoder
from boxwright.nn.ops.constants import constants
from boxwright.nn.postprocessing.level_candidates import BestOfLevel
from boxwright.nn.postprocessing.nms import Nms
from boxwright.nn.postprocessing.score_converters import ScoreConverter
from boxwright.types import AnchorPredictions, PaddedDetections, RawDetections


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
    def select(self, predictions: AnchorPredictions, raw: RawDetections, true_sizes: Tensor) -> PaddedDetections:
        """Return the detections after suppression, with their anchors' values; boxes are clipped to the true sizes."""
        scores = raw.scores[..., self.background :]
        if predictions.filtered is not None:
            # Below every threshold, also one of 0 or below.
            scores = scores.masked_fill(predictions.filtered[..., None], -torch.inf)
        if self.candidates is not None and predictions.level_sizes:
            grids = [(level.shape[-2], level.shape[-1]) for level in predictions.feature_maps]
            scores = self.candidates(scores, grids, predictions.level_sizes)
        # Where fixed shapes did not suffice, the result says so, and `detections_with` repeats it on the CPU.
        found = self.nms.without_wait(raw.boxes, scores, true_sizes.to(raw.boxes))
        keypoints = self._keypoints(predictions)
        return replace(
            found,
            multiclass_scores=of_anchors(raw.scores, found.anchors),
            keypoints=None if keypoints is None else of_anchors(keypoints, found.anchors),
            masks=None if predictions.masks is None else of_anchors(predictions.masks, found.anchors),
        )

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
