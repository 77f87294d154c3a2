"""Second stages, which crop and classify proposals and refine their boxes (Faster R-CNN, section 3.2).

Of a feature pyramid each region is cropped from one level. Modules run on valid rows only.

Dimensions: B batch, R proposals of an image, K foreground classes, C channels, H W grid, h w crop, N regions, L levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from boxwright.families.two_stage.context_attention import ContextAttention, Place
from boxwright.nn.batch_norm import NormSettings, make_norm
from boxwright.nn.layers import Dense, KernelRule
from boxwright.nn.network import ClassLayer
from boxwright.nn.ops.boxes import box_area, normalized
from boxwright.nn.ops.roi import Pool, crop_and_resize, roi_align
from boxwright.types import FinalFeatures, PaddedDetections, Proposals, RegionPredictions, TwoStagePredictions
from boxwright.types.context_features import ContextFeatures

# From boxes [..., 4] in pixels of the network's input, the input's (height, width) and the number of levels.
LevelRule = Callable[[Tensor, tuple[int, int], int], Tensor]

# The side of a region, in pixels, equal to an image classifier's input (Lin et al., 2017, equation 1).
_CANONICAL_SIDE = 224
_CANONICAL_LEVEL = 4


def by_relative_size(boxes: Tensor, input_size: tuple[int, int], count: int) -> Tensor:
    """Return TF's levels: the second coarsest for a side of 224 pixels, one more for each doubling.

    With levels 2 to 6 that is level 5, where the paper has level 4; the coarsest level is also used.

    Args:
        boxes: float32 [..., 4], xyxy in units of the input (0..1).
        input_size: (height, width) of the input, with padding.

    Returns:
        int64 [...] in 0..L-1; 0 for a region without area.
    """
    ratio = math.sqrt(input_size[0] * input_size[1]) / _CANONICAL_SIDE
    # TF's order of operations, whose rounding decides at powers of two.
    exponent = torch.log(torch.sqrt(box_area(boxes).clamp(min=0)) * ratio) / math.log(2)
    return (exponent.floor() + (count - 2)).nan_to_num(nan=0.0).clamp(0, count - 1).long()


def by_size(boxes: Tensor, count: int, finest: int = 2) -> Tensor:
    """Return the paper's levels: 4 for a side of 224 pixels, one more for each doubling.

    Args:
        boxes: float32 [..., 4], xyxy in pixels of the input.

    Returns:
        int64 [...] in 0..L-1; 0 for a region without area.
    """
    side = torch.sqrt(box_area(boxes).clamp(min=0))
    # The epsilon makes 224 pixels level 4 despite rounding, as in kerod and torchvision.
    return (
        (torch.log2(side / _CANONICAL_SIDE + 1e-7) + (_CANONICAL_LEVEL - finest) + 1e-6)
        .floor()
        .nan_to_num(nan=0.0)
        .clamp(0, count - 1)
        .long()
    )


Size = tuple[int, int]


class RegionCrop(Protocol):
    """Crops regions of a batch's feature maps."""

    @property
    def side(self) -> int:
        """Height and width of a crop."""
        ...

    def __call__(self, maps: Sequence[Tensor], boxes: Tensor, input_size: Size) -> Tensor:
        """Crop.

        Args:
            maps: Levels, finest first, float [B, C, H, W] each.
            boxes: float32 [B, R, 4], xyxy in pixels of the network's input.

        Returns:
            float [B · R, C, h, w], ordered by image, then by region.
        """
        ...


@dataclass(frozen=True)
class CornerCrop:
    """TF's crop, from the corners of a region, followed by max pooling.

    Maps of padded inputs are sampled as if they had no padding, as in TF; trained networks rely on it.

    Attributes:
        fade: As for `crop_and_resize`.
    """

    size: int
    pool: Pool
    fade: bool = False

    @property
    def side(self) -> int:
        """Height and width of a crop."""
        return self.pool.size(self.size)

    def __call__(self, maps: Sequence[Tensor], boxes: Tensor, input_size: Size) -> Tensor:
        """Return float [B · R, C, h, w]."""
        # By the padded size, in float32 and in TF's order: at the border a rounding decides whether a sample counts.
        places = normalized(boxes, input_size)
        levels = by_relative_size(places, input_size, len(maps))
        crops = crop_and_resize(maps, places, levels, (self.size, self.size), fade=self.fade, pool=self.pool)
        return crops.flatten(0, 1)


@dataclass(frozen=True)
class RoiAlign:
    """The paper's crop: the average of samples at the centers of equal parts; levels by the region's size alone.

    Attributes:
        samples: Samples per cell in each direction.
        aligned: As for `roi_align`.
        levels: The number of levels to crop from.
        finest: The first level, whose map has a stride of 2 to that power.
    """

    size: int
    samples: int = 2
    aligned: bool = True
    levels: int = 4
    finest: int = 2

    @property
    def side(self) -> int:
        """Height and width of a crop."""
        return self.size

    def __call__(self, maps: Sequence[Tensor], boxes: Tensor, input_size: Size) -> Tensor:
        """Return float [B · R, C, h, w]."""
        del input_size
        used = maps[: self.levels]
        # The extent of the maps: the input with its padding.
        stride = 2**self.finest
        height, width = used[0].shape[-2] * stride, used[0].shape[-1] * stride
        crops = roi_align(
            used,
            boxes,
            by_size(boxes, len(used), self.finest),
            (self.size, self.size),
            input_size=(height, width),
            samples=self.samples,
            aligned=self.aligned,
        )
        return crops.flatten(0, 1)


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
        features = self.compute_features(maps, proposals.boxes, proposals.valid, input_size, context)
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
            features = self.compute_features(maps, detections.boxes, detections.valid, input_size)
            second = features.view(*count, *features.shape[1:])
        if wanted.crop is not None:
            crops = wanted.crop(maps, detections.boxes, input_size)
            first = crops.view(*count, *crops.shape[1:])
        return FinalFeatures(detections, second, first)

    def compute_features(
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
