"""DeepMAC: a mask for any box, from embeddings of its pixels and of its center (Birodkar et al., 2021).

A mask network maps the pixels of an instance, and what its center says of it, to one mask, whatever its class
(section 4). Masks are predicted for detections, and for the groundtruth's boxes, from which they are learned.

Dimensions: B batch, G objects (padded), D detections (padded), N instances or boxes of an image, C channels of pixels,
H W grid of cells, h w mask; an instance's own numbers are D, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.base.device import constants
from boxwright.families.center_net.backbones import (
    Hourglass,
    HourglassLayout,
    PreactivationBlock,
    ResidualBlock,
    hourglass_output,
)
from boxwright.families.center_net.cells import grid_shape, read
from boxwright.families.center_net.consistency_features import ConsistencyFeatures, RandomView
from boxwright.families.center_net.predictions import STRIDE, CenterPredictions, DeepMaskPredictions, EmbeddingMaps
from boxwright.nn.layers import ConvSettings, Dense, KernelRule, conv_norm_act, make_conv
from boxwright.nn.ops.boxes import normalized
from boxwright.nn.ops.roi import crop_and_resize
from boxwright.types import PaddedDetections, Targets

# Blocks of each stage, and channels in units of the first layer's; by TF's names.
MASK_RESNETS = {
    "resnet4": ((2, 2),),
    "resnet8": ((4, 2),),
    "resnet12": ((6, 2),),
    "resnet16": ((8, 2),),
    "resnet20": ((8, 2), (2, 3)),
}
_DENSE_UNITS = 1024

Join = Callable[[Tensor, Tensor], Tensor]


class MaskNetwork(Protocol):
    """Predicts masks."""

    def __call__(self, pixels: Tensor, instances: Tensor) -> Tensor:
        """Return logits [N, h, w].

        Args:
            pixels: float [N, C, h, w].
            instances: float [N, D].
        """
        ...


def instance_beside_pixels(pixels: Tensor, instances: Tensor) -> Tensor:
    """Return the pixels [N, C + D, h, w], each with the numbers of its instance."""
    return torch.cat([pixels, instances[..., None, None].expand(-1, -1, *pixels.shape[2:])], dim=1)


def pixels_alone(pixels: Tensor, instances: Tensor) -> Tensor:
    """Return the pixels."""
    del instances
    return pixels


class LayeredMask(nn.Module):
    """A network with layers of its own."""

    def __init__(self, layers: nn.Module, join: Join) -> None:
        """Assemble the network.

        Args:
            layers: From what `join` returns to [N, 1, h, w].
            join: From pixels and instances to the layers' input.
        """
        super().__init__()
        self.layers, self.join = layers, join

    def forward(self, pixels: Tensor, instances: Tensor) -> Tensor:
        """Return logits [N, h, w]."""
        logits: Tensor = self.layers(self.join(pixels, instances))
        return logits.squeeze(1)


class ProjectedMask(nn.Module):
    """The dot product of each pixel with its instance, which has as many numbers; no layers."""

    def forward(self, pixels: Tensor, instances: Tensor) -> Tensor:
        """Return logits [N, h, w]."""
        return torch.einsum("nchw,nc->nhw", pixels, instances)


class ConditionalMask(nn.Module):
    """1×1 convolutions whose weights are the instance's numbers (CondInst, Tian et al., 2020, section 3.2)."""

    def __init__(self, in_channels: int, width: int, depth: int) -> None:
        """Set the shapes.

        Args:
            in_channels: C.
            width: Channels between the convolutions.
            depth: The number of convolutions; all but the last are followed by a ReLU.
        """
        super().__init__()
        channels = [in_channels, *[width] * (depth - 1), 1]
        self.shapes = tuple(pairwise(channels))

    def forward(self, pixels: Tensor, instances: Tensor) -> Tensor:
        """Return logits [N, h, w]; an instance holds the weights and biases of each convolution in turn."""
        values, start = pixels, 0
        for number, (before, after) in enumerate(self.shapes):
            middle, end = start + before * after, start + before * after + after
            kernel = instances[:, start:middle].unflatten(1, (before, after))
            values = torch.einsum("nchw,nco->nohw", values, kernel) + instances[:, middle:end, None, None]
            values = F.relu(values) if number < len(self.shapes) - 1 else values
            start = end
        return values.squeeze(1)


class HourglassMask(nn.Module):
    """An hourglass behind a convolution and a residual block, of stride 1 both."""

    def __init__(
        self,
        in_channels: int,
        layout: HourglassLayout,
        settings: ConvSettings,
        *,
        stride: int = 2,
        shortcut: bool = True,
    ) -> None:
        """Build the layers; `stride` and `shortcut` are those of `Hourglass`."""
        super().__init__()
        width = layout.channels[0]
        self.stem = nn.Sequential(
            conv_norm_act(in_channels, layout.stem, 3, settings, padding="explicit"),
            ResidualBlock(layout.stem, width, settings, project=True),
        )
        self.hourglass = Hourglass(layout.channels, layout.blocks, settings, stride=stride, shortcut=shortcut)
        self.output = hourglass_output(width, settings)
        self.predict = make_conv(width, 1, 1, KernelRule(), bias=True)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [N, 1, h, w]."""
        logits: Tensor = self.predict(self.output(self.hourglass(self.stem(inputs))))
        return logits


class ResNetMask(nn.Module):
    """Pre-activation blocks of two 3×3 convolutions, behind a 1×1 one."""

    def __init__(
        self, in_channels: int, width: int, stages: tuple[tuple[int, int], ...], settings: ConvSettings
    ) -> None:
        """Build the layers.

        Args:
            width: Channels of the first layer.
            stages: Of each, the number of blocks, and their channels in units of the first layer's.
        """
        super().__init__()
        self.stem = make_conv(in_channels, width, 1, settings.kernel, bias=True)
        blocks, before = [], width
        for count, factor in stages:
            for number in range(count):
                blocks.append(PreactivationBlock(before, width * factor, 1, settings, basic=True, project=number == 0))
                before = width * factor
        self.blocks = nn.Sequential(*blocks)
        self.predict = make_conv(before, 1, 1, KernelRule(), bias=True)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [N, 1, h, w]."""
        logits: Tensor = self.predict(self.blocks(self.stem(inputs)))
        return logits


class DenseMask(nn.Module):
    """Two dense layers behind a 1×1 convolution, for masks of one size."""

    def __init__(self, in_channels: int, width: int, side: int) -> None:
        """Build the layers; `width` are the channels of the first."""
        super().__init__()
        self.side, rule = side, KernelRule()
        self.stem = make_conv(in_channels, width, 1, rule, bias=True)
        self.hidden, self.predict = Dense(width, _DENSE_UNITS, side), Dense(_DENSE_UNITS, side * side)
        for layer in (self.hidden, self.predict):
            rule.apply(layer)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [N, 1, h, w]."""
        rows: Tensor = self.predict(F.relu(self.hidden(self.stem(inputs))))
        return rows.view(-1, 1, self.side, self.side)


class MaskExtent(Protocol):
    """What a box's mask covers."""

    def pixels(self, maps: Tensor, boxes: Tensor) -> Tensor:
        """Return the pixels of each box's mask, [B, N, C, h, w], from maps [B, C, H, W].

        Args:
            boxes: float [B, N, 4], xyxy in 0..1 of the grid.
        """
        ...

    def coordinates(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Return y, x of each pixel of masks of a size, as the network's input: [B, N, 2, h, w]."""
        ...

    def of_boxes(self, logits: Tensor, boxes: Tensor) -> Tensor:
        """Return masks [B, N, h, w] that span each box from corner to corner, for what the network predicted."""
        ...


@dataclass(frozen=True)
class BoxCrops:
    """Masks span their boxes.

    Attributes:
        side: h and w.
    """

    side: int = 32

    def pixels(self, maps: Tensor, boxes: Tensor) -> Tensor:
        """Return [B, N, C, h, w]."""
        levels = torch.zeros(boxes.shape[:2], dtype=torch.int64, device=boxes.device)
        return crop_and_resize([maps], boxes, levels, (self.side, self.side), fade=True)

    def coordinates(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Return coordinates of -1 to 1 across each box."""
        return _grid((-1.0, 1.0), size, boxes.device).expand(*boxes.shape[:2], -1, -1, -1)

    def of_boxes(self, logits: Tensor, boxes: Tensor) -> Tensor:
        """Return the masks as they are."""
        del boxes
        return logits


@dataclass(frozen=True)
class WholeMaps:
    """Masks span the whole image, and are cropped after they are predicted.

    Attributes:
        side: Of a cropped mask.
    """

    side: int = 256

    def pixels(self, maps: Tensor, boxes: Tensor) -> Tensor:
        """Return [B, N, C, H, W], the same for each box."""
        return maps[:, None].expand(-1, boxes.shape[1], -1, -1, -1)

    def coordinates(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the way from each box's center in units of the image."""
        centers = (boxes[..., :2] + boxes[..., 2:]).flip(-1) / 2
        return _grid((0.0, 1.0), size, boxes.device) - centers[..., None, None]

    def of_boxes(self, logits: Tensor, boxes: Tensor) -> Tensor:
        """Return [B, N, h, w], from logits [B, N, H, W]."""
        batch, count, rows = logits.shape[:3]
        # TF mistakes the number of boxes for the height, and the height for the width, and so enlarges to that.
        enlarged = F.interpolate(
            logits.float(), size=(count * STRIDE, rows * STRIDE), mode="bilinear", align_corners=False
        )
        levels = torch.zeros(batch * count, 1, dtype=torch.int64, device=boxes.device)
        regions = boxes.flatten(0, 1)[:, None]
        crops = crop_and_resize([enlarged.flatten(0, 1)[:, None]], regions, levels, (self.side, self.side), fade=True)
        return crops.view(batch, count, self.side, self.side)


def _grid(ends: tuple[float, float], size: tuple[int, int], device: torch.device) -> Tensor:
    """Return y, x [2, h, w] from the first to the last row and column."""
    rows, columns = (torch.linspace(*ends, count, device=device) for count in size)
    return torch.stack([rows[:, None].expand(*size), columns.expand(*size)])


class DeepMasks(nn.Module):
    """Predicts the masks of boxes."""

    def __init__(self, network: MaskNetwork, extent: MaskExtent, *, use_xy: bool) -> None:
        """Assemble the part.

        Args:
            network: Pixels and instances to logits.
            use_xy: Whether the coordinates of pixels are an input of the network, before their embeddings.
        """
        super().__init__()
        self.network, self.extent, self.use_xy = network, extent, use_xy

    def forward(self, maps: EmbeddingMaps, boxes: Tensor) -> Tensor:
        """Return logits [B, N, h, w] of boxes [B, N, 4], xyxy in 0..1 of the grid."""
        pixels = self.extent.pixels(maps.pixels, boxes)
        if self.use_xy:
            size = (pixels.shape[-2], pixels.shape[-1])
            pixels = torch.cat([self.extent.coordinates(boxes, size).to(pixels.dtype), pixels], dim=2)
        instances = instances_at(maps.instances, boxes)
        logits: Tensor = self.network(pixels.flatten(0, 1), instances.flatten(0, 1))
        return logits.view(*boxes.shape[:2], *logits.shape[1:])


def instances_at(maps: Tensor, boxes: Tensor) -> Tensor:
    """Return the numbers [B, N, D] that maps [B, D, H, W] hold at boxes' centers; boxes as for `DeepMasks`."""
    grid = constants(grid_shape(maps), boxes.device)
    centers = (boxes[..., :2] + boxes[..., 2:]).flip(-1) * grid / 2
    return read(maps, centers.trunc().clamp(min=0).minimum(grid - 1))


# From a batch to its detections, and to their boxes on the grid, float [B, D, 4], xyxy in pixels.
Detect = Callable[[CenterPredictions], tuple[PaddedDetections, Tensor]]


class DeepMaskPredictor(nn.Module):
    """Predicts masks, and what their losses compare.

    Attributes:
        learns_masks: Whether training needs instance masks.
        current_step: The number of the training step, a float scalar.
    """

    def __init__(
        self,
        masks: DeepMasks,
        detect: Detect,
        *,
        last_stages: int,
        learns_masks: bool = True,
        features: ConsistencyFeatures | None = None,
        view: RandomView | None = None,
    ) -> None:
        """Assemble the part.

        Args:
            masks: Predicts the masks of boxes.
            last_stages: How many of the last stages have masks that are learned.
            features: Gives what feature consistency compares; None without.
            view: Draws the views of self-supervision; None without.
        """
        super().__init__()
        self.masks, self.detect, self.last_stages, self.learns_masks = masks, detect, last_stages, learns_masks
        self.features, self.view = features, view
        # A buffer, as a graph that a GPU replays would keep a number.
        self.register_buffer("current_step", torch.zeros(()), persistent=False)
        self.current_step: Tensor

    def of_detections(self, predictions: CenterPredictions) -> DeepMaskPredictions:
        """Return the masks of a batch's detections; nothing in training."""
        embeddings = predictions.stages[-1].embeddings
        if self.training or embeddings is None:
            return DeepMaskPredictions(step=self.current_step)
        detections, boxes = self.detect(predictions)
        boxes = relative(boxes, embeddings.pixels)
        logits = self.masks.extent.of_boxes(self.masks(embeddings, boxes), boxes)
        return DeepMaskPredictions(detections=detections, of_detections=logits)

    def of_objects(
        self,
        masks: DeepMaskPredictions,
        predictions: CenterPredictions,
        features: Sequence[Tensor],
        inputs: Tensor,
        targets: Targets,
        embeddings_of: Callable[[Tensor], list[EmbeddingMaps]],
    ) -> DeepMaskPredictions:
        """Return the predictions with the masks of targets.

        Args:
            features: The maps [B, C, H, W] of each stage.
            inputs: float [B, 3, 4 · H, 4 · W]; padded as the network pads.
            embeddings_of: Returns the embeddings of other inputs, of all stages.
        """
        every = [stage.embeddings for stage in predictions.stages if stage.embeddings is not None]
        embeddings = every[-self.last_stages :]
        count, boxes = targets.boxes.shape[1], relative(targets.boxes, embeddings[-1].pixels)
        if not count:
            # Other processes wait for gradients of every layer, and normalization takes no empty batch.
            boxes = boxes.new_zeros(len(boxes), 1, 4)
        of_objects = [self.masks(stage_embeddings, boxes)[:, :count] for stage_embeddings in embeddings]
        # Those of other stages, and instances that the network is not told of, would have none.
        of_objects[-1] = of_objects[-1] + 0.0 * sum(
            stage_embeddings.instances.sum() + stage_embeddings.pixels.sum() for stage_embeddings in every
        )
        return replace(
            masks,
            of_objects=tuple(of_objects),
            of_views=tuple(view_masks[:, :count] for view_masks in self._predict_views(inputs, boxes, embeddings_of)),
            features=None if self.features is None else self.features(inputs, features),
        )

    @torch.no_grad()
    def _predict_views(
        self, inputs: Tensor, boxes: Tensor, embeddings_of: Callable[[Tensor], list[EmbeddingMaps]]
    ) -> tuple[Tensor, ...]:
        if self.view is None:
            return ()
        # Training seeds PyTorch's generator at each step; an evaluation is to give the same losses again.
        generator = None if self.training else torch.Generator(inputs.device).manual_seed(0)
        view = self.view.draw(len(inputs), inputs.device, generator)
        embeddings = embeddings_of(view.of_images(inputs))[-self.last_stages :]
        moved = view.of_boxes(boxes)
        return tuple(view.undone(self.masks(stage_embeddings, moved)) for stage_embeddings in embeddings)


def relative(boxes: Tensor, maps: Tensor) -> Tensor:
    """Return boxes [B, N, 4], xyxy in pixels, in 0..1 of the grid of maps [B, C, H, W]."""
    height, width = grid_shape(maps)
    return normalized(boxes, (height * STRIDE, width * STRIDE))
