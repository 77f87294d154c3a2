"""DeepMAC's mask networks (The Surprising Impact of Mask-Head Architecture, Birodkar et al., 2021, section 4).

Each maps the pixels of an instance, and what its center says of it, to one mask, whatever its class.

Dimensions: N instances, C channels of pixels, D numbers of an instance, h w mask.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.families.center_net.hourglass import Hourglass, HourglassLayout, ResidualBlock, hourglass_output
from boxwright.families.center_net.keras_resnet import PreactivationBlock
from boxwright.nn.layers import ConvSettings, Dense, KernelRule, conv_norm_act, make_conv

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
