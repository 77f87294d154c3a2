"""Raw predictions of networks for a batch: one dataclass per family of detectors.

Only a family's criterion and postprocessor read the fields; all other code just passes them through.

Dimensions: B batch, A anchors, R regions of an image, D detections (padded), C columns of the class head, K foreground
classes, H W grid, h w instance mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from boxwright.types.padded_detections import PaddedDetections


@dataclass(frozen=True)
class AnchorPredictions:
    """Predictions for anchors on feature maps (SSD, RetinaNet, EfficientDet).

    Attributes:
        box_codes: float [B, A, code size]; boxes relative to the anchors, encoded by the box coder.
        class_logits: float [B, A, C]; C is K, or K + 1 if column 0 is background.
        anchors: float32 [A, 4], xyxy in pixels of the network's input; or [B, A, 4] if each image has its own.
        feature_maps: The inputs of the heads, finest first, each [B, C, H, W].
        input_size: (height, width) of the network's input, the unit in which boxes are coded.
        level_sizes: The number of anchors of each feature map, in order; empty if unknown.
        masks: float [B, A, h, w] or [B, A, K, h, w], if a head predicts them; or None.
        filtered: bool [B, A]; anchors that are neither detected nor negatives; or None.
    """

    box_codes: Tensor
    class_logits: Tensor
    anchors: Tensor
    feature_maps: tuple[Tensor, ...] = ()
    input_size: tuple[int, int] = (1, 1)
    level_sizes: tuple[int, ...] = ()
    masks: Tensor | None = None
    filtered: Tensor | None = None

    @property
    def final_anchors(self) -> Tensor:
        """float32 [B, A, 4], a view; the boxes in pixels that codes refer to (TF's `final_anchors`, there in 0..1)."""
        return self.anchors.expand(len(self.box_codes), -1, -1)

    def on_levels(self, levels: Sequence[int]) -> Tensor:
        """Return bool [A]: which anchors belong to the given feature maps, numbered from the finest."""
        if not self.level_sizes:
            raise ValueError("the feature map of each anchor is unknown")
        device = self.anchors.device
        # Filled on the device: a tensor made of a list would be copied there, and the copy waits.
        parts = [torch.full((size,), n in levels, device=device) for n, size in enumerate(self.level_sizes)]
        return torch.cat(parts)

    def rows_of_levels(self, levels: Sequence[int]) -> list[slice]:
        """Return slices of the anchors of feature maps, numbered from the finest, in ascending order.

        Adjacent maps are merged into one slice, for which indexing a tensor returns a view.
        """
        ends = [0, *accumulate(self.level_sizes)]
        slices: list[slice] = []
        for number in sorted(levels):
            begin = ends[number]
            if slices and slices[-1].stop == begin:
                begin = slices.pop().start
            slices.append(slice(begin, ends[number + 1]))
        return slices


@dataclass(frozen=True)
class CascadePredictions:
    """Predictions of a detector with several steps (RefineDet, SRN, AlignDet).

    Attributes:
        steps: The predictions of each step. The anchors of the first are the original ones; those of later steps are
            the boxes that the previous step predicted.
    """

    steps: tuple[AnchorPredictions, ...]

    @property
    def refinement(self) -> AnchorPredictions:
        """The first step's predictions."""
        return self.steps[0]

    @property
    def detection(self) -> AnchorPredictions:
        """The last step's predictions."""
        return self.steps[-1]

    @property
    def final_anchors(self) -> Tensor:
        """float32 [B, A, 4], as in `AnchorPredictions`; the boxes that the last step refines."""
        return self.detection.final_anchors


@dataclass(frozen=True)
class Proposals:
    """Regions that may contain an object, best first, padding last.

    Attributes:
        boxes: float32 [B, R, 4], xyxy in pixels of the network's input; 0 for padding.
        scores: float32 [B, R]; the probability that each contains an object; 0 for padding.
        valid: bool [B, R]; False for padding.
        positive: bool [B, R]; which were sampled for the object that they contain; None without sampling.
        complete: As for `PaddedDetections`.
    """

    boxes: Tensor
    scores: Tensor
    valid: Tensor
    positive: Tensor | None = None
    complete: Tensor | None = None


@dataclass(frozen=True)
class RegionPredictions:
    """The second stage's predictions for each proposal.

    Attributes:
        box_codes: float [B, R, K, 4]; boxes relative to the proposals, per class, or [B, R, 1, 4] for all classes.
        class_logits: float [B, R, C]; column 0 is background.
        features: The heads' input, float [B · R, channels, H, W]; or [B, channels, H, W] if the second stage uses whole
            maps.
    """

    box_codes: Tensor
    class_logits: Tensor
    features: Tensor


@dataclass(frozen=True)
class InstancePredictions:
    """The third stage's masks.

    Attributes:
        boxes: float32 [B, D, 4], xyxy in pixels of the network's input; the extent of each mask.
        valid: bool [B, D].
        logits: float [B, D, K, h, w], per class, or [B, D, 1, h, w] for all classes.
        detections: The detections that the masks belong to; None in training, when they belong to sampled proposals.
    """

    boxes: Tensor
    valid: Tensor
    logits: Tensor
    detections: PaddedDetections | None = None


@dataclass(frozen=True)
class FinalFeatures:
    """A network's features of its own detections.

    Attributes:
        detections: The detections that they belong to.
        second: The second stage's features, float [B, D, C, H, W]; None if not requested.
        first: The second stage's input crops, float [B, D, C, H, W]; None if not requested.
    """

    detections: PaddedDetections
    second: Tensor | None = None
    first: Tensor | None = None


@dataclass(frozen=True)
class TwoStagePredictions:
    """Predictions of Faster and Mask R-CNN.

    Attributes:
        first: The region proposal network's, with the columns background and object, for the anchors that count.
        proposals: The second stage's input regions.
        regions: The second stage's predictions; None without a second stage.
        instances: The third stage's masks; None without a third stage.
        final: Features of the detections; None if not requested, and in training.
    """

    first: AnchorPredictions
    proposals: Proposals
    regions: RegionPredictions | None = None
    instances: InstancePredictions | None = None
    final: FinalFeatures | None = None

    @property
    def final_anchors(self) -> Tensor:
        """float32 [B, R, 4], as in `AnchorPredictions`; the proposals, or without a second stage the anchors."""
        return self.first.final_anchors if self.regions is None else self.proposals.boxes
