"""Stacked hourglasses (Newell et al., 2016) with the residual blocks of CornerNet (Law and Deng, 2018, section 3.5).

An hourglass shrinks its input step by step, enlarges it again, and adds at each size what it shrank. The input has a
stride of 4, as has the output of each hourglass of the stack; each is learned on its own (intermediate supervision).

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.activations import make_activation
from boxwright.nn.backbones.backbone import Backbone
from boxwright.nn.layers import ConvNormAct, ConvSettings, conv_norm_act


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
