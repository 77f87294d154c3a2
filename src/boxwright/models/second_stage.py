"""Second stages: what looks at proposals (Faster R-CNN, section 3.2).

Dimensions: B batch, R proposals of an image, K foreground classes, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from boxwright.models.heads.box_classifier import CODE_SIZE, BoxClassifierHead
from boxwright.models.network import ClassLayer
from boxwright.models.region_crop import RegionCrop
from boxwright.models.valid_rows import of_valid_rows
from boxwright.types import FinalFeatures, PaddedDetections, Proposals, RegionPredictions, TwoStagePredictions

Size = tuple[int, int]


@dataclass(frozen=True)
class FinalOutputs:
    """What is given out of each detection beside its box.

    Attributes:
        features: Whether what the second stage sees there is.
        crop: How the first stage's maps are cropped there; None where these crops are not.
        detect: Chooses the detections, given the true sizes.
    """

    features: bool
    crop: RegionCrop | None
    detect: Callable[[TwoStagePredictions, Tensor], PaddedDetections]


class SecondStage(nn.Module):
    """Predicts classes and boxes of proposals.

    Attributes:
        features: The second half of a backbone, or what stands in its place.
    """

    features: nn.Module

    def forward(self, maps: list[Tensor], proposals: Proposals, input_size: Size) -> RegionPredictions:
        """Return codes and logits of proposals; 0 for those that are padding, where they were not looked at."""
        raise NotImplementedError

    @property
    def class_layers(self) -> tuple[ClassLayer, ...]:
        """The layers whose rows are classes, by their names in the stage."""
        raise NotImplementedError


class BoxClassifier(SecondStage):
    """Crops each proposal, and looks at the crop."""

    def __init__(self, crop: RegionCrop, features: nn.Module, head: BoxClassifierHead) -> None:
        """Assemble the stage.

        Args:
            crop: Cuts proposals out of the maps.
            features: Crops to the features that the head sees, [N, C, H, W].
            head: Those to box codes [N, K or 1, 4] and class logits [N, K + 1].
        """
        super().__init__()
        self.crop, self.features, self.head = crop, features, head

    @property
    def class_layers(self) -> tuple[ClassLayer, ...]:
        """The dense layers; that of boxes where each class has its own."""
        head, dense = self.head, self.head.dense_layer
        classes = ClassLayer(f"head.classes.{dense}", head.num_classes + 1)
        if head.box_columns == 1:
            return (classes,)
        return (classes, ClassLayer(f"head.boxes.{dense}", head.num_classes, CODE_SIZE))

    def forward(self, maps: list[Tensor], proposals: Proposals, input_size: Size) -> RegionPredictions:
        """Return codes [B, R, K or 1, 4] and logits [B, R, K + 1]."""
        features = self.look(maps, proposals.boxes, proposals.valid, input_size)
        codes, logits = self.head(features)
        count = proposals.boxes.shape[:2]
        return RegionPredictions(codes.view(*count, *codes.shape[1:]), logits.view(*count, -1), features)

    def at(self, maps: list[Tensor], found: PaddedDetections, input_size: Size, wanted: FinalOutputs) -> FinalFeatures:
        """Return what is seen at detections."""
        count = found.boxes.shape[:2]
        second = first = None
        if wanted.features:
            features = self.look(maps, found.boxes, found.valid, input_size)
            second = features.view(*count, *features.shape[1:])
        if wanted.crop is not None:
            crops = wanted.crop(maps, found.boxes, input_size)
            first = crops.view(*count, *crops.shape[1:])
        return FinalFeatures(found, second, first)

    def look(self, maps: list[Tensor], boxes: Tensor, valid: Tensor, input_size: Size) -> Tensor:
        """Return the features [B · R, C, H, W] of boxes [B, R, 4] in pixels of the input; 0 where not valid."""
        crops = self.crop(maps, boxes, input_size)
        return of_valid_rows(self.features, crops, valid, all_rows=self.training)
