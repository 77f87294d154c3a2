"""Heads whose features are aligned with boxes: AlignDet's second step, and RefineDet++'s.

Dimensions: B batch, A anchors, S anchors a location, C columns of the class head, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from boxwright.nn.activations import make_activation
from boxwright.nn.heads.convolutional import HeadOutput, flatten_anchors, start_bias
from boxwright.nn.heads.roi_conv import BoxSampling, RoIConv
from boxwright.nn.layers import ConvSettings, conv_norm_act, make_conv


class AlignedHead(nn.Module):
    """Sample features at each cell's box, then predict one box per cell by 1×1 convolutions (AlignDet, figure 4)."""

    def __init__(
        self,
        samplings: Sequence[BoxSampling],
        levels: int,
        strides: Sequence[float],
        depth: int,
        output: HeadOutput,
        settings: ConvSettings,
    ) -> None:
        """Build the layers after the sampling.

        Args:
            samplings: Each level's sampling, finest first; the last serves all coarser levels too.
            strides: The stride of each level in pixels.
            depth: Channels of the samplings' outputs and of the hidden layer.
            settings: Convolutions; without normalization, as released.
        """
        super().__init__()
        self.output, self.strides = output, tuple(strides)
        # Two samplings are the release's cheaper variant, whose finest level has a smaller kernel of its own.
        self.of_level = tuple(min(level, len(samplings) - 1) for level in range(levels))
        self.samplings = nn.ModuleList(samplings)
        self.hidden = nn.ModuleList([conv_norm_act(depth, depth, 1, settings) for _ in samplings])
        self.activation = make_activation(settings.activation)
        self.boxes = nn.Sequential(make_conv(depth, output.code_size, 1, settings.kernel, bias=True))
        self.classes = nn.Sequential(make_conv(depth, output.columns, 1, settings.kernel, bias=True))
        start_bias(self.classes, output.class_bias)

    @property
    def class_layers(self) -> tuple[str, ...]:
        """Names within the head of the convolutions that give class logits."""
        return ("classes.0",)

    def forward(self, features: list[Tensor], boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Return box codes [B, A, code size] and class logits [B, A, C] for the boxes [B, A, 4], one per cell."""
        cells = [level.shape[-2] * level.shape[-1] for level in features]
        seen = []
        for level, part, stride, number in zip(
            features, torch.split(boxes, cells, 1), self.strides, self.of_level, strict=True
        ):
            sampled = self.samplings[number](level, part, stride)
            seen.append(self.hidden[number](self.activation(sampled)))
        codes, logits = [self.boxes(level) for level in seen], [self.classes(level) for level in seen]
        return self.output.finish(
            flatten_anchors(codes, self.output.code_size), flatten_anchors(logits, self.output.columns)
        )


class AlignmentConvHead(nn.Module):
    """Predict by 3×3 convolutions whose taps lie on the refined boxes, one for each anchor shape (RefineDet++)."""

    def __init__(
        self,
        in_channels: Sequence[int],
        anchors_per_location: Sequence[int],
        strides: Sequence[float],
        output: HeadOutput,
        settings: ConvSettings,
    ) -> None:
        """Build the convolutions of every level and anchor shape.

        Args:
            anchors_per_location: Anchors at each location of each level.
            strides: The stride of each level in pixels.
        """
        super().__init__()
        self.output, self.strides = output, tuple(strides)

        def layers(numbers: int, bias: float) -> nn.ModuleList:
            made = []
            for channels, count in zip(in_channels, anchors_per_location, strict=True):
                shapes = [RoIConv(channels, numbers, 3, settings, border="zero") for _ in range(count)]
                for shape in shapes:
                    start_bias(nn.Sequential(shape.conv), bias)
                made.append(nn.ModuleList(shapes))
            return nn.ModuleList(made)

        self.boxes, self.classes = layers(output.code_size, 0.0), layers(output.columns, output.class_bias)

    @property
    def class_layers(self) -> tuple[str, ...]:
        """Names within the head of the convolutions that give class logits."""
        return tuple(
            f"classes.{level}.{shape}.conv"
            for level, shapes in enumerate(self.classes)
            for shape in range(len(list(shapes.children())))
        )

    def forward(self, features: list[Tensor], boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Return box codes [B, A, code size] and class logits [B, A, C] for the boxes [B, A, 4] of all anchors."""
        shapes = [len(list(level.children())) for level in self.boxes]
        rows = [level.shape[-2] * level.shape[-1] * count for level, count in zip(features, shapes, strict=True)]
        parts = list(zip(features, torch.split(boxes, rows, 1), self.strides, shapes, strict=True))
        codes, logits = (
            [_each_shape(*part, layer) for part, layer in zip(parts, layers, strict=True)]
            for layers in (self.boxes, self.classes)
        )
        return self.output.finish(torch.cat(codes, 1), torch.cat(logits, 1))


def _each_shape(level: Tensor, boxes: Tensor, stride: float, count: int, layers: nn.Module) -> Tensor:
    """Return [B, H × W × S, numbers]: the outputs of each anchor shape's convolution at its boxes [B, H × W × S, 4]."""
    by_shape = boxes.reshape(boxes.shape[0], -1, count, 4).unbind(2)
    said = [layer(level, part, stride).flatten(2) for layer, part in zip(layers.children(), by_shape, strict=True)]
    return torch.stack(said, -1).permute(0, 2, 3, 1).flatten(1, 2)
