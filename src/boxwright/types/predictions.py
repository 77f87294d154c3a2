"""What networks say of a batch before any decoding: one dataclass a family of detectors.

Only a family's criterion and postprocessor read the fields; everything else passes them through.

Dimensions: B batch, A anchors, R regions of an image, D detections (padded), C columns of the class head, K foreground
classes, H W grid, h w instance mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from boxwright.types.detections import PaddedDetections


@dataclass(frozen=True)
class AnchorPredictions:
    """Predictions for anchors laid over feature maps (SSD, RetinaNet, EfficientDet).

    Attributes:
        box_codes: float [B, A, code size]; offsets from the anchors, as the box coder has them.
        class_logits: float [B, A, C]; C is K, or K + 1 where column 0 is background.
        anchors: float32 [A, 4], xyxy in pixels of the network's input; or [B, A, 4] where each image has its own.
        feature_maps: The maps that the heads saw, finest first, each [B, C, H, W].
        input_size: (height, width) of the network's input, the unit in which boxes are coded.
        level_sizes: How many of the anchors belong to each feature map, in order; empty where not known.
        masks: float [B, A, h, w] or [B, A, K, h, w], where a head predicts them; or None.
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

    def on_levels(self, levels: Sequence[int]) -> Tensor:
        """Return bool [A]: which anchors belong to some of the feature maps, by number from the finest."""
        if not self.level_sizes:
            raise ValueError("which feature map each anchor belongs to is not known")
        device = self.anchors.device
        parts = [torch.full((size,), n in levels, device=device) for n, size in enumerate(self.level_sizes)]
        return torch.cat(parts)

    def rows_of_levels(self, levels: Sequence[int]) -> list[slice]:
        """Return the anchors of one or more of the feature maps, by number from the finest, in ascending order.

        Neighboring maps are one slice, of which a tensor has a view.
        """
        ends = [0, *accumulate(self.level_sizes)]
        found: list[slice] = []
        for number in sorted(levels):
            begin = ends[number]
            if found and found[-1].stop == begin:
                begin = found.pop().start
            found.append(slice(begin, ends[number + 1]))
        return found


@dataclass(frozen=True)
class CascadePredictions:
    """Predictions of a detector that looks several times (RefineDet, SRN, AlignDet).

    Attributes:
        steps: What each step says. The anchors of the first are as they were laid; those of a later one are the boxes
            that it starts from, at which the step before arrived.
    """

    steps: tuple[AnchorPredictions, ...]

    @property
    def refinement(self) -> AnchorPredictions:
        """What the first step says."""
        return self.steps[0]

    @property
    def detection(self) -> AnchorPredictions:
        """What the last step says."""
        return self.steps[-1]


@dataclass(frozen=True)
class Proposals:
    """Regions that may hold an object, best first; what is valid comes first.

    Attributes:
        boxes: float32 [B, R, 4], xyxy in pixels of the network's input; zeros where padded.
        scores: float32 [B, R]; how likely each holds an object; 0 where padded.
        valid: bool [B, R]; False where padded.
        positive: bool [B, R]; which were sampled for the object that they hold; None where nothing was sampled.
        complete: As for `PaddedDetections`.
    """

    boxes: Tensor
    scores: Tensor
    valid: Tensor
    positive: Tensor | None = None
    complete: Tensor | None = None


@dataclass(frozen=True)
class RegionPredictions:
    """What a second stage says of each proposal.

    Attributes:
        box_codes: float [B, R, K, 4]; offsets from the proposals, for each class or, with [B, R, 1, 4], for all alike.
        class_logits: float [B, R, C]; column 0 is background.
        features: What the heads saw, float [B · R, channels, H, W]; or [B, channels, H, W] where the second stage looks
            at whole maps.
    """

    box_codes: Tensor
    class_logits: Tensor
    features: Tensor


@dataclass(frozen=True)
class InstancePredictions:
    """The masks that a third stage predicts.

    Attributes:
        boxes: float32 [B, D, 4], xyxy in pixels of the network's input; what each mask spans.
        valid: bool [B, D].
        logits: float [B, D, K, h, w], for each class or, with [B, D, 1, h, w], for all alike.
        detections: The detections that the masks are of; None in training, where they are of sampled proposals.
    """

    boxes: Tensor
    valid: Tensor
    logits: Tensor
    detections: PaddedDetections | None = None


@dataclass(frozen=True)
class FinalFeatures:
    """What a network sees at the boxes that it found.

    Attributes:
        detections: The detections that they are of.
        second: What the second stage sees, float [B, D, C, H, W]; None where not asked for.
        first: The crops that it looks at, float [B, D, C, H, W]; None where not asked for.
    """

    detections: PaddedDetections
    second: Tensor | None = None
    first: Tensor | None = None


@dataclass(frozen=True)
class TwoStagePredictions:
    """Predictions of Faster and Mask R-CNN.

    Attributes:
        first: The region proposal network's; its columns are no object, object. Its anchors are those that count.
        proposals: The regions that the second stage looked at.
        regions: What it said of them; None where there is no second stage.
        instances: The third stage's masks; None where there is none.
        final: Features of the detections; None where not asked for, and in training.
    """

    first: AnchorPredictions
    proposals: Proposals
    regions: RegionPredictions | None = None
    instances: InstancePredictions | None = None
    final: FinalFeatures | None = None


@dataclass(frozen=True)
class RawDetections:
    """Every anchor of a batch decoded, before anything is dropped (TF's `raw_detection_…`).

    Attributes:
        boxes: float32 [B, A, 4], xyxy in pixels of the network's input, not clipped; of regions [B, A, K, 4], a box a
            class.
        scores: float32 [B, A, C]; background first where there is one.
        valid: bool [B, A]; False where padded; None where nothing is.
    """

    boxes: Tensor
    scores: Tensor
    valid: Tensor | None = None

    @property
    def of_regions(self) -> bool:
        """Whether these are of regions of interest, each with a box for every class, and not of anchors."""
        return self.boxes.ndim > self.scores.ndim
