"""Two-stage postprocessing: decode from proposals, convert scores, suppress, add masks (TF's FasterRCNNMetaArch).

Dimensions: B batch, R proposals of an image, K foreground classes, D detections (padded), h w mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from boxwright.families.two_stage.third_stage import masks_of_classes
from boxwright.nn.ops.boxes import BoxCoder, clip_boxes
from boxwright.nn.postprocessing.anchor import ScoreConverter, of_anchors
from boxwright.nn.postprocessing.nms import Nms, Suppress
from boxwright.types import PaddedDetections, RawDetections, TwoStagePredictions


@dataclass(frozen=True)
class TwoStagePostprocessor:
    """Turn the predictions of the second and third stage into detections.

    Attributes:
        clip_first: Whether boxes are clipped before suppression, as in torchvision and kerod, or after, as in TF.
    """

    box_coder: BoxCoder
    score_converter: ScoreConverter
    nms: Nms
    clip_first: bool = False

    def above(self, score: float) -> Self:
        """Return the same, in which scores below one do not enter suppression."""
        return replace(self, nms=self.nms.above(score))

    @property
    def suppression(self) -> Nms:
        """The suppression, which an exported graph may hold as one operator."""
        return self.nms

    @torch.no_grad()
    def decode(self, predictions: TwoStagePredictions) -> RawDetections:
        """Return boxes [B, R, K or 1, 4] and scores [B, R, K + 1] of all proposals; padding's are meaningless."""
        if predictions.regions is None:
            raise ValueError("predictions of a network without a second stage need a ProposalPostprocessor")
        anchors = predictions.proposals.boxes[:, :, None]
        boxes = self.box_coder.decode(predictions.regions.box_codes.float(), anchors)
        scores = self.score_converter(predictions.regions.class_logits.float())
        return RawDetections(boxes, scores, predictions.first.input_size, predictions.proposals.valid)

    @torch.no_grad()
    def select(
        self,
        predictions: TwoStagePredictions,
        raw: RawDetections,
        true_sizes: Tensor,
        suppress: Suppress = Nms.without_wait,
    ) -> PaddedDetections:
        """Return the detections after suppression, clipped to the true sizes, with masks and features."""
        instances, final, masks = predictions.instances, predictions.final, None
        if instances is not None and instances.detections is not None:
            # The network has detected already, as masks are predicted for detections only.
            detections = instances.detections
            masks = masks_of_classes(instances.logits.float(), detections.labels).sigmoid()
        elif final is not None:
            detections = final.detections
        else:
            detections = self._suppressed(predictions, raw, true_sizes, suppress)
        return replace(
            detections,
            multiclass_scores=of_anchors(raw.scores, detections.anchors),
            masks=masks,
            features=None if final is None else final.second,
            rpn_features=None if final is None else final.first,
        )

    @torch.no_grad()
    def detect(self, predictions: TwoStagePredictions, true_sizes: Tensor) -> PaddedDetections:
        """Return the padded detections after suppression, for a third stage."""
        return self._suppressed(predictions, self.decode(predictions), true_sizes, Nms.__call__)

    def _suppressed(
        self,
        predictions: TwoStagePredictions,
        raw: RawDetections,
        true_sizes: Tensor,
        suppress: Suppress,
    ) -> PaddedDetections:
        scores = raw.scores[..., 1:].masked_fill(~predictions.proposals.valid[..., None], -torch.inf)
        # One box for all classes needs no class axis, and suppression takes it without.
        boxes = raw.boxes.squeeze(2) if raw.boxes.shape[2] == 1 else raw.boxes
        if self.clip_first:
            height, width = true_sizes.to(boxes).view(-1, 2, *[1] * (boxes.ndim - 2)).unbind(1)
            boxes = clip_boxes(boxes, height, width)
        detections = suppress(self.nms, boxes, scores, true_sizes.to(boxes))
        all_proposed = predictions.proposals.complete
        if detections.complete is None or all_proposed is None:
            return detections
        # Proposals may have been incomplete before: the whole is exact only if both are.
        return replace(detections, complete=detections.complete & all_proposed)


@dataclass(frozen=True)
class ProposalPostprocessor:
    """Return proposals as detections of one class, for a network without a second stage."""

    box_coder: BoxCoder

    def above(self, score: float) -> Self:
        """Return itself: proposals are suppressed in the network."""
        del score
        return self

    @torch.no_grad()
    def decode(self, predictions: TwoStagePredictions) -> RawDetections:
        """Return boxes [B, A, 4] and scores [B, A, 2] of background and object of all anchors."""
        first = predictions.first
        boxes = self.box_coder.decode(first.box_codes.float(), first.anchors)
        return RawDetections(boxes, first.class_logits.float().softmax(-1), first.input_size)

    @torch.no_grad()
    def select(
        self,
        predictions: TwoStagePredictions,
        raw: RawDetections,
        true_sizes: Tensor,
        suppress: Suppress = Nms.without_wait,
    ) -> PaddedDetections:
        """Return the proposals, with label 0; their anchors, of which TF says nothing, are their indices."""
        del raw, true_sizes, suppress
        proposals = predictions.proposals
        numbers = torch.arange(proposals.scores.shape[1], device=proposals.scores.device).expand_as(proposals.scores)
        # The scores come from a softmax over background and object.
        both = torch.stack([1 - proposals.scores, proposals.scores], dim=-1)
        return PaddedDetections(
            proposals.boxes,
            proposals.scores,
            torch.zeros_like(numbers),
            numbers,
            proposals.valid,
            proposals.complete,
            both,
        )
