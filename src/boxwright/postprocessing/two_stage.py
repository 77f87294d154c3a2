"""Two-stage postprocessing: decode from proposals, convert scores, suppress, add masks (TF's FasterRCNNMetaArch).

Dimensions: B batch, R proposals of an image, K foreground classes, D detections (padded), h w mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.ops.box_coder import BoxCoder
from boxwright.ops.boxes import clip_boxes
from boxwright.ops.masks import masks_of_classes
from boxwright.postprocessing.nms import Nms
from boxwright.postprocessing.score_converters import ScoreConverter
from boxwright.types import Detections, PaddedDetections, RawDetections, TwoStagePredictions

__all__ = ["ProposalPostprocessor", "TwoStagePostprocessor"]


@dataclass(frozen=True)
class TwoStagePostprocessor:
    """Turn what the second and third stage predict into detections.

    Attributes:
        box_coder: Decodes box codes.
        score_converter: Turns logits into scores.
        nms: Keeps the best.
        clip_first: Whether boxes are clipped before they suppress others, as torchvision and kerod do; TF does after.
    """

    box_coder: BoxCoder
    score_converter: ScoreConverter
    nms: Nms
    clip_first: bool = False

    @torch.no_grad()
    def __call__(self, predictions: TwoStagePredictions, true_sizes: Tensor) -> list[Detections]:
        """Return B detections, in pixels of the network's input; `image_size` is the true size."""
        raw = self.decode(predictions)
        selected = self.select(predictions, raw, true_sizes)
        return self.to_list(predictions, raw, selected, true_sizes)

    @torch.no_grad()
    def decode(self, predictions: TwoStagePredictions) -> RawDetections:
        """Return boxes [B, R, K or 1, 4] and scores [B, R, K + 1] of all proposals; those of padding mean nothing."""
        if predictions.regions is None:
            raise ValueError("predictions of a network without a second stage have a ProposalPostprocessor")
        anchors = predictions.proposals.boxes[:, :, None]
        boxes = self.box_coder.decode(predictions.regions.box_codes.float(), anchors)
        return RawDetections(boxes, self.score_converter(predictions.regions.class_logits.float()))

    @torch.no_grad()
    def select(self, predictions: TwoStagePredictions, raw: RawDetections, true_sizes: Tensor) -> PaddedDetections:
        """Return what is left after suppression, padded; boxes are clipped to the true sizes."""
        if predictions.instances is not None and predictions.instances.detections is not None:
            return predictions.instances.detections
        if predictions.final is not None:
            return predictions.final.detections
        scores = raw.scores[..., 1:].masked_fill(~predictions.proposals.valid[..., None], -torch.inf)
        boxes = raw.boxes.squeeze(2) if raw.boxes.shape[2] == 1 else raw.boxes
        if self.clip_first:
            height, width = true_sizes.to(boxes).view(-1, 2, *[1] * (boxes.ndim - 2)).unbind(1)
            boxes = clip_boxes(boxes, height, width)
        return self.nms(boxes, scores, true_sizes.to(boxes))

    def detect(self, predictions: TwoStagePredictions, true_sizes: Tensor) -> PaddedDetections:
        """Return what is left after suppression, padded, for a third stage to look at."""
        return self.select(predictions, self.decode(predictions), true_sizes)

    def to_list(
        self, predictions: TwoStagePredictions, raw: RawDetections, selected: PaddedDetections, true_sizes: Tensor
    ) -> list[Detections]:
        """Return the detections of each image, with what is known of their proposals."""
        masks = None
        if predictions.instances is not None and predictions.instances.detections is not None:
            masks = masks_of_classes(predictions.instances.logits.float(), selected.labels).sigmoid()
        found, final = [], predictions.final
        for number, size in enumerate(true_sizes.tolist()):
            image = selected.image(number)
            detections = Detections(
                boxes=image.boxes,
                scores=image.scores,
                labels=image.labels,
                image_size=(int(size[0]), int(size[1])),
                anchor_indices=image.anchors,
                multiclass_scores=raw.scores[number, image.anchors],
                masks=None if masks is None else masks[number, : len(image.boxes)],
                features=None if final is None or final.second is None else final.second[number, : len(image.boxes)],
                rpn_features=None if final is None or final.first is None else final.first[number, : len(image.boxes)],
            )
            found.append(detections)
        return found


@dataclass(frozen=True)
class ProposalPostprocessor:
    """Give out proposals as detections of one class: what a network without a second stage finds."""

    @torch.no_grad()
    def __call__(self, predictions: TwoStagePredictions, true_sizes: Tensor) -> list[Detections]:
        """Return B detections with label 0, in pixels of the network's input."""
        found, proposals = [], predictions.proposals
        for number, size in enumerate(true_sizes.tolist()):
            valid = proposals.valid[number]
            scores = proposals.scores[number][valid]
            detections = Detections(
                boxes=proposals.boxes[number][valid],
                scores=scores,
                labels=torch.zeros(len(scores), dtype=torch.int64, device=scores.device),
                image_size=(int(size[0]), int(size[1])),
                multiclass_scores=torch.stack([1 - scores, scores], dim=-1),
            )
            found.append(detections)
        return found
