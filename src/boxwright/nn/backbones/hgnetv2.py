"""HGNetV2, PaddlePaddle's second high-performance GPU network, as D-FINE uses it.

Modules have the names of the published weights, which thereby load by name.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.batch_norm import BatchNormSettings, make_norm
from boxwright.nn.network import Backbone

# As everywhere in D-FINE; PyTorch's own.
NORM = BatchNormSettings(decay=0.9, epsilon=1e-5)
_FIRST_STRIDE = 4  # of the first stage's maps


@dataclass(frozen=True)
class HgNetLayout:
    """The shape of an HGNetV2; lists have one number for each of its four stages.

    Attributes:
        stem: Channels within the stem, and of its output.
        middle: Channels of the convolutions within a block.
        out: Channels of a stage's map.
        blocks: Blocks of a stage.
        layers: Convolutions in a row in each block.
        affine: Whether a learned scale and shift follow each activation.
    """

    stem: tuple[int, int]
    middle: tuple[int, ...]
    out: tuple[int, ...]
    blocks: tuple[int, ...]
    layers: int
    affine: bool


HGNETS = {
    "hgnetv2_b0": HgNetLayout((16, 16), (16, 32, 64, 128), (64, 256, 512, 1024), (1, 1, 2, 1), 3, affine=True),
    "hgnetv2_b2": HgNetLayout((24, 32), (32, 64, 128, 256), (96, 384, 768, 1536), (1, 1, 3, 1), 4, affine=True),
    "hgnetv2_b4": HgNetLayout((32, 48), (48, 96, 192, 384), (128, 512, 1024, 2048), (1, 1, 3, 1), 6, affine=False),
    "hgnetv2_b5": HgNetLayout((32, 64), (64, 128, 256, 512), (128, 512, 1024, 2048), (1, 2, 5, 2), 6, affine=False),
}


class LearnedAffine(nn.Module):
    """A learned scale and shift of all values alike."""

    def __init__(self) -> None:
        """Start as an identity."""
        super().__init__()
        self.scale, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the same shape."""
        return self.scale * inputs + self.bias


class ConvNorm(nn.Module):
    """A convolution and batch normalization, without an activation."""

    def __init__(
        self, channels: int, out: int, kernel: int, stride: int = 1, *, depthwise: bool = False, padding: int = -1
    ) -> None:
        """Build the layers; a negative padding stands for half the kernel."""
        super().__init__()
        padding = kernel // 2 if padding < 0 else padding
        self.conv = nn.Conv2d(channels, out, kernel, stride, padding, groups=out if depthwise else 1, bias=False)
        self.bn = make_norm(out, NORM)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, out, H', W']."""
        normalized: Tensor = self.bn(self.conv(inputs))
        return normalized


class ConvNormRelu(ConvNorm):
    """A convolution, batch normalization, ReLU, and possibly a learned scale and shift."""

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int,
        stride: int = 1,
        *,
        affine: bool,
        depthwise: bool = False,
        padding: int = -1,
    ) -> None:
        """Build the layers."""
        super().__init__(channels, out, kernel, stride, depthwise=depthwise, padding=padding)
        self.lab = LearnedAffine() if affine else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, out, H', W']."""
        activated: Tensor = self.lab(F.relu(super().forward(inputs)))
        return activated


class LightConv(nn.Module):
    """A pointwise convolution without an activation, then a depthwise one."""

    def __init__(self, channels: int, out: int, kernel: int, *, affine: bool) -> None:
        """Build the layers."""
        super().__init__()
        self.conv1 = ConvNorm(channels, out, 1)
        self.conv2 = ConvNormRelu(out, out, kernel, affine=affine, depthwise=True)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, out, H, W]."""
        outputs: Tensor = self.conv2(self.conv1(inputs))
        return outputs


class Stem(nn.Module):
    """The first layers: stride 4, in two branches."""

    def __init__(self, in_channels: int, middle: int, out: int, *, affine: bool) -> None:
        """Build the layers."""
        super().__init__()
        self.stem1 = ConvNormRelu(in_channels, middle, 3, 2, affine=affine)
        self.stem2a = ConvNormRelu(middle, middle // 2, 2, affine=affine, padding=0)
        self.stem2b = ConvNormRelu(middle // 2, middle, 2, affine=affine, padding=0)
        self.stem3 = ConvNormRelu(2 * middle, middle, 3, 2, affine=affine)
        self.stem4 = ConvNormRelu(middle, out, 1, affine=affine)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, out, H / 4, W / 4]."""
        # Even kernels and the pooling keep the size by a row below and a column to the right.
        first = F.pad(self.stem1(inputs), (0, 1, 0, 1))
        second = self.stem2b(F.pad(self.stem2a(first), (0, 1, 0, 1)))
        outputs: Tensor = self.stem4(self.stem3(torch.cat([F.max_pool2d(first, 2, 1), second], 1)))
        return outputs


class Block(nn.Module):
    """Convolutions in a row, whose outputs are all joined with the input."""

    def __init__(self, channels: int, middle: int, out: int, convs: Sequence[nn.Module], *, affine: bool) -> None:
        """Build the layers that join; `convs` are those in the row, of `middle` channels each."""
        super().__init__()
        self.layers = nn.ModuleList(convs)
        joined = channels + len(convs) * middle
        self.aggregation = nn.Sequential(
            ConvNormRelu(joined, out // 2, 1, affine=affine), ConvNormRelu(out // 2, out, 1, affine=affine)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, out, H, W]."""
        outputs = [inputs]
        for layer in self.layers:
            outputs.append(layer(outputs[-1]))
        joined: Tensor = self.aggregation(torch.cat(outputs, 1))
        return joined


class Stage(nn.Module):
    """A halving of the size, except in the first stage, and blocks."""

    def __init__(self, number: int, channels: int, layout: HgNetLayout) -> None:
        """Build stage `number`, from 0, for a map of so many channels."""
        super().__init__()
        middle, out = layout.middle[number], layout.out[number]
        self.downsample = ConvNorm(channels, channels, 3, 2, depthwise=True) if number else nn.Identity()
        blocks = []
        for block in range(layout.blocks[number]):
            into = out if block else channels
            # Stages 3 and 4 are light: pointwise, then depthwise 5×5.
            convs: list[nn.Module] = [
                LightConv(middle if layer else into, middle, 5, affine=layout.affine)
                if number > 1
                else ConvNormRelu(middle if layer else into, middle, 3, affine=layout.affine)
                for layer in range(layout.layers)
            ]
            blocks.append(Block(into, middle, out, convs, affine=layout.affine))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, out, H', W']."""
        outputs: Tensor = self.downsample(inputs)
        for number, block in enumerate(self.blocks):
            outputs = block(outputs) + outputs if number else block(outputs)
        return outputs


class HgNetV2(Backbone):
    """Stem and four stages, of strides 4 to 32."""

    def __init__(self, layout: HgNetLayout, strides: Sequence[int], in_channels: int = 3) -> None:
        """Build the network.

        Args:
            strides: Of the maps that `forward` returns, finest first: 4, 8, 16 and 32.
        """
        super().__init__()
        self.stem = Stem(in_channels, *layout.stem, affine=layout.affine)
        widths = (layout.stem[1], *layout.out)
        self.stages = nn.ModuleList(Stage(number, widths[number], layout) for number in range(len(layout.out)))
        self.taps = tuple((stride // _FIRST_STRIDE).bit_length() - 1 for stride in strides)
        self.channels = tuple(layout.out[tap] for tap in self.taps)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return one map per stride, finest first."""
        maps = [self.stem(inputs)]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return [maps[1 + tap] for tap in self.taps]
