"""CenterNet's backbones: ResNets as in Keras's applications, and stacked hourglasses (Newell et al., 2016).

ResNets are v1 (He et al., 2016, table 1) and v2 ("Identity Mappings", figure 4e). They differ from those of TF's other
detectors: v1's convolutions learn a bias, pooling pads on all sides, and v2's stages shrink the image in their last
block. The two smallest have v2's blocks with two convolutions.

An hourglass, with the residual blocks of CornerNet (Law and Deng, 2018, section 3.5), shrinks its input step by step,
enlarges it again, and adds at each size what it shrank. The input has a stride of 4, as has the output of each
hourglass of the stack; each is learned on its own (intermediate supervision).

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.backbones.resnet_v1 import Bottleneck
from boxwright.nn.batch_norm import make_norm
from boxwright.nn.layers import ConvNormAct, ConvSettings, conv_norm_act, make_activation, make_conv
from boxwright.nn.network import Backbone

_WIDTHS = (64, 128, 256, 512)
_EXPANSION = 4


@dataclass(frozen=True)
class ResNetLayout:
    """The blocks of each stage; `basic` ones have two 3×3 convolutions, others are bottlenecks."""

    blocks: tuple[int, ...]
    basic: bool = False

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels of each stage."""
        return tuple(width if self.basic else width * _EXPANSION for width in _WIDTHS)


# By their number of layers.
KERAS_RESNETS = {
    18: ResNetLayout((2, 2, 2, 2), basic=True),
    34: ResNetLayout((3, 4, 6, 3), basic=True),
    50: ResNetLayout((3, 4, 6, 3)),
    101: ResNetLayout((3, 4, 23, 3)),
}


class KerasResNetV1(Backbone):
    """A 7×7 stem and four stages of bottlenecks, whose first block shrinks the image."""

    def __init__(self, layout: ResNetLayout, settings: ConvSettings, *, in_channels: int = 3) -> None:
        """Build the network."""
        super().__init__()
        settings = replace(settings, force_bias=True)
        self.stem = conv_norm_act(in_channels, _WIDTHS[0], 7, settings, stride=2, padding="explicit")
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.channels = layout.channels
        stages, before = [], _WIDTHS[0]
        for number, (count, width, channels) in enumerate(zip(layout.blocks, _WIDTHS, self.channels, strict=True)):
            first = Bottleneck(before, width, channels, 2 if number else 1, settings, project=True)
            rest = (Bottleneck(channels, width, channels, 1, settings, project=False) for _ in range(count - 1))
            stages.append(nn.Sequential(first, *rest))
            before = channels
        self.stages = nn.ModuleList(stages)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the maps of strides 4, 8, 16 and 32."""
        features, maps = self.pool(self.stem(inputs)), []
        for stage in self.stages:
            features = stage(features)
            maps.append(features)
        return maps


class PreactivationBlock(nn.Module):
    """Normalization and activation before the first convolution; the sum is neither normalized nor activated.

    A projection has a stride of 1, whatever the block's; without one, the input is subsampled.
    """

    def __init__(
        self, in_channels: int, width: int, stride: int, settings: ConvSettings, *, basic: bool, project: bool
    ) -> None:
        """Build a block with two 3×3 convolutions (`basic`), or with 1×1, 3×3 and 1×1 ones."""
        super().__init__()
        self.stride = stride
        self.norm = make_norm(in_channels, settings.norm)
        self.activation = make_activation(settings.activation)
        strided = conv_norm_act(width, width, 3, settings, stride=stride, padding="explicit")
        body: list[nn.Module]
        if basic:
            channels, body = width, [conv_norm_act(in_channels, width, 3, settings), strided]
        else:
            channels = width * _EXPANSION
            expand = make_conv(width, channels, 1, settings.kernel, bias=True)
            body = [conv_norm_act(in_channels, width, 1, settings), strided, expand]
        self.body = nn.Sequential(*body)
        self.project = make_conv(in_channels, channels, 1, settings.kernel, bias=True) if project else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C', H', W']."""
        ready = self.activation(self.norm(inputs))
        kept = inputs[..., :: self.stride, :: self.stride] if self.project is None else self.project(ready)
        outputs: Tensor = kept + self.body(ready)
        return outputs


class PreactivationResNet(Backbone):
    """A 7×7 convolution and four stages of pre-activation blocks, whose last block shrinks the image.

    A classifier's normalization after the last stage is not part of it.
    """

    def __init__(
        self,
        layout: ResNetLayout,
        settings: ConvSettings,
        *,
        strides: tuple[int, ...],
        outputs: Sequence[int],
        in_channels: int = 3,
    ) -> None:
        """Build the network.

        Args:
            strides: The stride of each stage.
            outputs: The stages whose maps are returned, from 0.
        """
        super().__init__()
        self.stem = make_conv(in_channels, _WIDTHS[0], 7, settings.kernel, stride=2, bias=True, padding="explicit")
        self.outputs = tuple(outputs)
        self.channels = tuple(layout.channels[number] for number in outputs)
        stages, before = [], _WIDTHS[0]
        for count, width, stride, channels in zip(layout.blocks, _WIDTHS, strides, layout.channels, strict=True):
            blocks = []
            for number in range(count):
                step = stride if number == count - 1 else 1
                blocks.append(
                    PreactivationBlock(before, width, step, settings, basic=layout.basic, project=number == 0)
                )
                before = channels
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the maps of the chosen stages, finest first."""
        # Padded with 0 rather than minus infinity, which matters as nothing is activated before.
        features, maps = F.max_pool2d(F.pad(self.stem(inputs), (1, 1, 1, 1)), 3, 2), []
        for number, stage in enumerate(self.stages):
            features = stage(features)
            if number in self.outputs:
                maps.append(features)
        return maps


@dataclass(frozen=True)
class HourglassLayout:
    """The size of a stack of hourglasses.

    Attributes:
        stem: Channels of the first convolution.
        channels: Channels at each size, finest first.
        blocks: Residual blocks at each size, finest first; the last number is of the innermost blocks.
        hourglasses: The number of hourglasses in the stack.
    """

    stem: int
    channels: tuple[int, ...]
    blocks: tuple[int, ...]
    hourglasses: int = 1


# Single hourglasses by their number of layers, TF's names: channels at each size in units of the stem's, and blocks.
_SINGLES = {
    10: ((2, 2), (1, 1)),
    20: ((2, 2, 3), (1, 2, 2)),
    32: ((2, 2, 3, 3), (2, 2, 2, 2)),
    52: ((2, 2, 3, 3, 3, 4), (2, 2, 2, 2, 2, 4)),
    100: ((2, 2, 3, 3, 3, 4), (4, 4, 4, 4, 4, 8)),
}


def single_hourglass(layers: int, stem: int) -> HourglassLayout:
    """Return the layout of one hourglass of 10, 20, 32, 52 or 100 layers, for a number of the stem's channels."""
    widths, blocks = _SINGLES[layers]
    return HourglassLayout(stem, tuple(stem * width for width in widths), blocks)


# Backbones by their number of layers.
HOURGLASSES = {
    **{layers: single_hourglass(layers, stem) for layers, stem in ((10, 32), (20, 48), (32, 48), (52, 64))},
    104: HourglassLayout(128, (256, 256, 384, 384, 384, 512), (2, 2, 2, 2, 2, 4), hourglasses=2),
}


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions, added to the input or to its projection."""

    def __init__(
        self, in_channels: int, channels: int, settings: ConvSettings, *, stride: int = 1, project: bool = False
    ) -> None:
        """Build the block; `stride` is that of its first convolution and of the projection."""
        super().__init__()
        linear = replace(settings, activation="NONE")
        self.first = conv_norm_act(in_channels, channels, 3, settings, stride=stride, padding="explicit")
        self.second = conv_norm_act(channels, channels, 3, linear)
        self.skip = conv_norm_act(in_channels, channels, 1, linear, stride=stride) if project else nn.Identity()
        self.activation = make_activation(settings.activation)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C', H', W']."""
        outputs: Tensor = self.activation(self.second(self.first(inputs)) + self.skip(inputs))
        return outputs


def _shrink(in_channels: int, channels: int, count: int, settings: ConvSettings, stride: int) -> nn.Sequential:
    """Return residual blocks, of which the first has the stride."""
    project = stride > 1 or in_channels != channels
    first = ResidualBlock(in_channels, channels, settings, stride=stride, project=project)
    return nn.Sequential(first, *_same(channels, count - 1, settings))


def _same(channels: int, count: int, settings: ConvSettings) -> nn.Sequential:
    """Return residual blocks that keep shapes."""
    return nn.Sequential(*(ResidualBlock(channels, channels, settings) for _ in range(count)))


def _narrow(in_channels: int, channels: int, count: int, settings: ConvSettings) -> nn.Sequential:
    """Return residual blocks, of which the last changes the number of channels."""
    last = ResidualBlock(in_channels, channels, settings, project=in_channels != channels)
    return nn.Sequential(*_same(in_channels, count - 1, settings), last)


class Hourglass(nn.Module):
    """One size of an hourglass, with the coarser ones inside."""

    def __init__(
        self,
        channels: Sequence[int],
        blocks: Sequence[int],
        settings: ConvSettings,
        *,
        stride: int = 2,
        shortcut: bool = True,
    ) -> None:
        """Build the size of the first number of channels, and below it those of the others.

        Args:
            stride: From one size to the next; with 1 all are of the same.
            shortcut: Whether each size also adds what goes beside the coarser ones.
        """
        super().__init__()
        width, inner_width, count = channels[0], channels[1], blocks[0]
        self.stride = stride
        self.beside = _same(width, count, settings) if shortcut else None
        self.down = _shrink(width, inner_width, count, settings, stride)
        innermost = len(channels) == 2
        self.inner: nn.Module = (
            _same(inner_width, blocks[1], settings)
            if innermost
            else Hourglass(channels[1:], blocks[1:], settings, stride=stride, shortcut=shortcut)
        )
        self.up = _narrow(inner_width, width, count, settings)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the shape of the input, whose height and width are multiples of the stride for each size inside."""
        coarse: Tensor = self.up(self.inner(self.down(inputs)))
        if self.stride > 1:
            coarse = F.interpolate(coarse, scale_factor=self.stride, mode="nearest")
        if self.beside is None:
            return coarse
        beside: Tensor = self.beside(inputs)
        return beside + coarse


class Stem(nn.Sequential):
    """A 7×7 convolution and a residual block, each of stride 2."""

    def __init__(self, layout: HourglassLayout, settings: ConvSettings, in_channels: int) -> None:
        """Build the two."""
        super().__init__(
            conv_norm_act(in_channels, layout.stem, 7, settings, stride=2, padding="explicit"),
            ResidualBlock(layout.stem, layout.channels[0], settings, stride=2, project=True),
        )


class HourglassConnection(nn.Module):
    """From an hourglass's input and output to the next one's input."""

    def __init__(self, channels: int, settings: ConvSettings) -> None:
        """Build the layers."""
        super().__init__()
        linear = replace(settings, activation="NONE")
        self.of_input = conv_norm_act(channels, channels, 1, linear)
        self.of_output = conv_norm_act(channels, channels, 1, linear)
        self.activation = make_activation(settings.activation)
        self.residual = ResidualBlock(channels, channels, settings)

    def forward(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Return the shape of both."""
        following: Tensor = self.residual(self.activation(self.of_input(inputs) + self.of_output(outputs)))
        return following


class StackedHourglass(Backbone):
    """A stem and one or more hourglasses; every map that it returns has a stride of 4."""

    def __init__(self, layout: HourglassLayout, settings: ConvSettings, *, in_channels: int = 3) -> None:
        """Build the stack."""
        super().__init__()
        width = layout.channels[0]
        self.stem = Stem(layout, settings, in_channels)
        sizes = range(layout.hourglasses)
        self.hourglasses = nn.ModuleList(Hourglass(layout.channels, layout.blocks, settings) for _ in sizes)
        self.outputs = nn.ModuleList(hourglass_output(width, settings) for _ in sizes)
        self.handovers = nn.ModuleList(HourglassConnection(width, settings) for _ in sizes[1:])
        self.channels = (width,) * layout.hourglasses

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return one map per hourglass, first to last."""
        features, maps = self.stem(inputs), []
        for number, (hourglass, output) in enumerate(zip(self.hourglasses, self.outputs, strict=True)):
            maps.append(output(hourglass(features)))
            if number < len(self.handovers):
                features = self.handovers[number](features, maps[-1])
        return maps


def hourglass_output(channels: int, settings: ConvSettings) -> ConvNormAct:
    """Return the convolution that follows an hourglass."""
    return conv_norm_act(channels, channels, 3, settings)
