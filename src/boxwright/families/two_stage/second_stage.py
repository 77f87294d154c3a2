"""Second stages, which classify proposals (Faster R-CNN, section 3.2).

Dimensions: B batch, R proposals of an image, K foreground classes, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from boxwright.families.two_stage.box_classifier import CODE_SIZE, BoxClassifierHead
from boxwright.families.two_stage.context_attention import ContextAttention, Place
from boxwright.families.two_stage.region_crop import RegionCrop
from boxwright.families.two_stage.valid_rows import of_valid_rows
from boxwright.nn.network import ClassLayer
from boxwright.types import FinalFeatures, PaddedDetections, Proposals, RegionPredictions, TwoStagePredictions
from boxwright.types.context_features import ContextFeatures

Size = tuple[int, int]


@dataclass(frozen=True)
class FinalOutputs:
    """Which outputs each detection has beside its box.

    Attributes:
        features: Whether the second stage's features are returned.
        crop: Crops the first stage's maps at detections; None to return no crops.
        detect: Selects the detections, given the true sizes.
    """

    features: bool
    crop: RegionCrop | None
    detect: Callable[[TwoStagePredictions, Tensor], PaddedDetections]


class SecondStage(nn.Module):
    """Predicts classes and boxes of proposals.

    Attributes:
        features: The second half of a backbone, or its replacement.
    """

    features: nn.Module

    def forward(self, maps: list[Tensor], proposals: Proposals, input_size: Size) -> RegionPredictions:
        """Return codes and logits of proposals; 0 for padding that was skipped."""
        raise NotImplementedError

    @property
    def class_layers(self) -> tuple[ClassLayer, ...]:
        """The layers whose rows are classes, by their names in the stage."""
        raise NotImplementedError


class BoxClassifier(SecondStage):
    """Crops each proposal and classifies the crop."""

    def __init__(
        self,
        crop: RegionCrop,
        features: nn.Module,
        head: BoxClassifierHead,
        attention: ContextAttention | None = None,
    ) -> None:
        """Assemble the stage.

        Args:
            features: Crops to the head's features [N, C, H, W].
            head: Features to box codes [N, K or 1, 4] and class logits [N, K + 1].
            attention: Adds what crops or features find in other images; None for a detector of single images.
        """
        super().__init__()
        self.crop, self.features, self.head, self.attention = crop, features, head, attention

    @property
    def class_layers(self) -> tuple[ClassLayer, ...]:
        """The dense layers; the box layer only if each class has its own box."""
        head, dense = self.head, self.head.dense_layer
        classes = ClassLayer(f"head.classes.{dense}", head.num_classes + 1)
        if head.box_columns == 1:
            return (classes,)
        return (classes, ClassLayer(f"head.boxes.{dense}", head.num_classes, CODE_SIZE))

    def forward(
        self, maps: list[Tensor], proposals: Proposals, input_size: Size, context: ContextFeatures | None = None
    ) -> RegionPredictions:
        """Return codes [B, R, K or 1, 4] and logits [B, R, K + 1]."""
        features = self.features_of(maps, proposals.boxes, proposals.valid, input_size, context)
        codes, logits = self.head(features)
        count = proposals.boxes.shape[:2]
        return RegionPredictions(codes.view(*count, *codes.shape[1:]), logits.view(*count, -1), features)

    def at(
        self, maps: list[Tensor], detections: PaddedDetections, input_size: Size, wanted: FinalOutputs
    ) -> FinalFeatures:
        """Return the wanted features of detections."""
        count = detections.boxes.shape[:2]
        second = first = None
        if wanted.features:
            features = self.features_of(maps, detections.boxes, detections.valid, input_size)
            second = features.view(*count, *features.shape[1:])
        if wanted.crop is not None:
            crops = wanted.crop(maps, detections.boxes, input_size)
            first = crops.view(*count, *crops.shape[1:])
        return FinalFeatures(detections, second, first)

    def features_of(
        self,
        maps: list[Tensor],
        boxes: Tensor,
        valid: Tensor,
        input_size: Size,
        context: ContextFeatures | None = None,
    ) -> Tensor:
        """Return the features [B · R, C, H, W] of boxes [B, R, 4] in pixels of the input; 0 where not valid."""
        crops = self._attended("crops", self.crop(maps, boxes, input_size), valid, context)
        # In training batch statistics include padding, as TF's do.
        features = of_valid_rows(self.features, crops, valid, all_rows=self.training)
        return self._attended("features", features, valid, context)

    def _attended(self, place: Place, rows: Tensor, valid: Tensor, context: ContextFeatures | None) -> Tensor:
        if self.attention is None or self.attention.place != place:
            return rows
        attended: Tensor = self.attention(rows, valid, context)
        return attended
