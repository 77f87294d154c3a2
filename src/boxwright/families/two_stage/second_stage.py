"""Second stages, which classify proposals (Faster R-CNN, section 3.2).

The head that classifies regions and refines their boxes (Faster R-CNN, section 3.2; TF's mask_rcnn_box_predictor).

Running a module on valid rows only.

Dimensions: B batch, R proposals of an image, K foreground classes, C channels, H W grid, N regions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from boxwright.families.two_stage.context_attention import ContextAttention, Place
from boxwright.families.two_stage.region_crop import RegionCrop
from boxwright.nn.batch_norm import NormSettings, make_norm
from boxwright.nn.layers import Dense, KernelRule
from boxwright.nn.network import ClassLayer
from boxwright.types import FinalFeatures, PaddedDetections, Proposals, RegionPredictions, TwoStagePredictions
from boxwright.types.context_features import ContextFeatures

CODE_SIZE = 4
# TF2's dense layers ignore initializer and regularizer of fc_hyperparams; TF1's take them.
_KERAS = KernelRule()


class BoxClassifierHead(nn.Module):
    """The mean of a crop's features, then a dense layer for codes and one for logits.

    Attributes:
        box_columns: K, or 1 if all classes share a box.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        *,
        share_boxes: bool = False,
        dropout: float = 0.0,
        rule: KernelRule = _KERAS,
        norm: NormSettings | None = None,
    ) -> None:
        """Build the layers.

        Args:
            dropout: The share of features dropped before each layer.
            norm: Normalization after each layer; None for none.
        """
        super().__init__()
        self.num_classes, self.box_columns = num_classes, 1 if share_boxes else num_classes

        def layers(out: int) -> nn.Sequential:
            dense = rule.apply(Dense(in_channels, out, bias=norm is None))
            return nn.Sequential(*([nn.Dropout(dropout)] if dropout else []), dense, make_norm(out, norm))

        self.boxes = layers(self.box_columns * CODE_SIZE)
        self.classes = layers(num_classes + 1)

    @property
    def dense_layer(self) -> int:
        """The index of the dense layer in `boxes` and `classes`."""
        return len(self.classes) - 2

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return box codes [N, K or 1, 4] and class logits [N, K + 1] for features [N, C, H, W]."""
        mean = features.mean((2, 3), keepdim=True)
        codes, logits = self.boxes(mean).flatten(1), self.classes(mean).flatten(1)
        return codes.view(codes.shape[0], self.box_columns, CODE_SIZE), logits


def of_valid_rows(module: nn.Module, rows: Tensor, valid: Tensor, *, all_rows: bool = False) -> Tensor:
    """Return a module's output for each valid row, and 0 for padding, which the module does not process.

    The only place in networks that depends on data. A compiled or exported graph has one shape: its module processes
    all rows, and the outputs for padding are meaningless.

    Args:
        module: Maps float [N, ...] to N rows.
        rows: float [N, ...].
        valid: bool, N values, in the order of the rows.
        all_rows: Whether to process all rows, when batch statistics include padding, as TF's do.
    """
    # `bool` waits for the device; it is asked last, and docs/gpu.md lists it.
    if all_rows or torch.compiler.is_compiling() or bool(valid.all()):
        every: Tensor = module(rows)
        return every
    index = valid.flatten().nonzero().squeeze(1)
    outputs: Tensor = module(rows[index])
    return outputs.new_zeros(rows.shape[0], *outputs.shape[1:]).index_copy_(0, index, outputs)


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
