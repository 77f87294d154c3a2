"""SSD's postprocessor: decode, convert scores, suppress (TF's SSDMetaArch.postprocess).

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.ops.box_coder import BoxCoder, KeypointBoxCoder
from boxwright.postprocessing.level_candidates import BestOfLevel
from boxwright.postprocessing.nms import Nms
from boxwright.postprocessing.score_converters import ScoreConverter
from boxwright.types import AnchorPredictions, Categories, Detections, PaddedDetections, RawDetections

__all__ = ["AnchorPostprocessor"]


@dataclass(frozen=True)
class AnchorPostprocessor:
    """Turn predictions into detections.

    Attributes:
        box_coder: Decodes box codes.
        score_converter: Turns logits into scores.
        nms: Keeps the best.
        background: Columns before the foreground: 1 where column 0 is background, else 0.
        categories: The classes, for the detections to carry; None where they are not known.
        candidates: Which scores of each level take part; None for all.
    """

    box_coder: BoxCoder
    score_converter: ScoreConverter
    nms: Nms
    background: int = 1
    categories: Categories | None = None
    candidates: BestOfLevel | None = None

    @torch.no_grad()
    def __call__(self, predictions: AnchorPredictions, true_sizes: Tensor) -> list[Detections]:
        """Return B detections, in pixels of the network's input; `image_size` is the true size."""
        raw = self.decode(predictions)
        return self.to_list(predictions, raw, self.select(predictions, raw, true_sizes), true_sizes)

    @torch.no_grad()
    def select(self, predictions: AnchorPredictions, raw: RawDetections, true_sizes: Tensor) -> PaddedDetections:
        """Return what is left after suppression, padded; boxes are clipped to the true sizes."""
        scores = raw.scores[..., self.background :]
        if predictions.filtered is not None:
            scores = scores.masked_fill(predictions.filtered[..., None], -torch.inf)
        if self.candidates is not None and predictions.levels is not None:
            grids = [(level.shape[-2], level.shape[-1]) for level in predictions.feature_maps]
            scores = self.candidates(scores, grids, predictions.levels)
        return self.nms(raw.boxes, scores, true_sizes.to(raw.boxes))

    def to_list(
        self, predictions: AnchorPredictions, raw: RawDetections, selected: PaddedDetections, true_sizes: Tensor
    ) -> list[Detections]:
        """Return the detections of each image, with what is known of their anchors."""
        keypoints, found = self._keypoints(predictions), []
        for number, size in enumerate(true_sizes.tolist()):
            image = selected.image(number)
            detections = Detections(
                boxes=image.boxes,
                scores=image.scores,
                labels=image.labels,
                image_size=(int(size[0]), int(size[1])),
                categories=self.categories,
                anchor_indices=image.anchors,
                multiclass_scores=raw.scores[number, image.anchors],
                keypoints=None if keypoints is None else keypoints[number, image.anchors],
                masks=None if predictions.masks is None else predictions.masks[number, image.anchors],
            )
            found.append(detections)
        return found

    @torch.no_grad()
    def decode(self, predictions: AnchorPredictions) -> RawDetections:
        """Return boxes and scores of all anchors."""
        unit = self._unit(predictions)
        boxes = self.box_coder.decode(predictions.box_codes.float(), predictions.anchors / unit) * unit
        return RawDetections(boxes, self.score_converter(predictions.class_logits.float()), predictions.levels)

    def _keypoints(self, predictions: AnchorPredictions) -> Tensor | None:
        if not isinstance(self.box_coder, KeypointBoxCoder):
            return None
        unit = self._unit(predictions)
        codes = predictions.box_codes.float()
        return self.box_coder.decode_keypoints(codes, predictions.anchors / unit) * unit[:2]

    def _unit(self, predictions: AnchorPredictions) -> Tensor:
        """Return the unit [4] in which boxes are coded: the input's size, or pixels where that is the same."""
        height, width = (1, 1) if self.box_coder.unit_free else predictions.input_size
        return predictions.anchors.new_tensor([width, height, width, height])
