"""MobileNetV2 (Sandler et al., 2018, table 2), with TF's depth rules.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

from torch import Tensor, nn

from boxwright.nn.layers import ConvSettings, Padding, conv_norm_act
from boxwright.nn.network import Backbone

# (expansion, channels, stride) of the inverted residual blocks 0 to 16.
_BLOCKS = (
    (1, 16, 1),
    (6, 24, 2),
    (6, 24, 1),
    (6, 32, 2),
    (6, 32, 1),
    (6, 32, 1),
    (6, 64, 2),
    (6, 64, 1),
    (6, 64, 1),
    (6, 64, 1),
    (6, 96, 1),
    (6, 96, 1),
    (6, 96, 1),
    (6, 160, 2),
    (6, 160, 1),
    (6, 160, 1),
    (6, 320, 1),
)
_HEAD = 17
# How many blocks share a width and a stride, which is how other implementations number them.
BLOCKS_OF_STAGES = (1, 2, 3, 4, 3, 3, 1)


def divisible(value: float, least: int = 8) -> int:
    """Return a value rounded to a multiple of 8, not below `least` nor below 90 % of the value."""
    rounded = max(least, int(value + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * value else rounded


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection; adds the input if shapes match."""

    def __init__(
        self, in_channels: int, expanded: int, out_channels: int, stride: int, settings: ConvSettings, padding: Padding
    ) -> None:
        """Build the block.

        Args:
            expanded: Expanded channels; equal to `in_channels` for a block without expansion.
        """
        super().__init__()
        linear = replace(settings, activation="NONE")
        self.expand = conv_norm_act(in_channels, expanded, 1, settings) if expanded != in_channels else nn.Identity()
        self.depthwise = conv_norm_act(expanded, expanded, 3, settings, stride=stride, depthwise=True, padding=padding)
        self.project = conv_norm_act(expanded, out_channels, 1, linear)
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C', H', W']."""
        return self.finish(inputs, self.expand(inputs))

    def finish(self, inputs: Tensor, expanded: Tensor) -> Tensor:
        """Return the block's output [B, C', H', W'] from its expanded features."""
        outputs: Tensor = self.project(self.depthwise(expanded))
        return inputs + outputs if self.residual else outputs


class MobileNetV2(Backbone):
    """A stem, 17 inverted residual blocks and a 1×1 convolution."""

    def __init__(
        self,
        settings: ConvSettings,
        *,
        taps: Sequence[str] = ("13/expand", "17"),
        depth_multiplier: float = 1.0,
        min_depth: int = 8,
        padding: Padding = "same",
        last_channels: int = 1280,
        in_channels: int = 3,
    ) -> None:
        """Build the network up to the last tap.

        Args:
            taps: Outputs to return, in order: "i" for block i (17 is the last convolution), or "i/expand" for its
                expanded features; the last is without "/expand".
            min_depth: The minimum channels of any layer except expansions.
            last_channels: Channels of the last convolution, before the multiplier.
        """
        super().__init__()
        self.taps = tuple(taps)
        channels = max(divisible(32 * depth_multiplier), min_depth)
        self.stem = conv_norm_act(in_channels, channels, 3, settings, stride=2, padding=padding)
        blocks, widths = [], {}
        last_block = int(self.taps[-1])
        for number, (expansion, wanted, stride) in enumerate(_BLOCKS[: last_block + 1]):
            expanded = channels * expansion
            # Keras cuts off before it rounds, in the blocks but neither in the stem nor in the last convolution.
            width = max(divisible(int(wanted * depth_multiplier)), min_depth)
            blocks.append(InvertedResidual(channels, expanded, width, stride, settings, padding))
            widths[f"{number}/expand"], widths[str(number)] = expanded, width
            channels = width
        self.blocks = nn.ModuleList(blocks)
        widths[str(_HEAD)] = max(divisible(last_channels * depth_multiplier), min_depth)
        self.head = conv_norm_act(channels, widths[str(_HEAD)], 1, settings) if last_block == _HEAD else None
        self.channels = tuple(widths[tap] for tap in self.taps)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return one map per tap, in the order of the taps."""
        features, maps = self.stem(inputs), {}
        for number, block in enumerate(cast(Iterable[InvertedResidual], self.blocks)):
            if (tap := f"{number}/expand") in self.taps:
                maps[tap] = block.expand(features)
                features = block.finish(features, maps[tap])
            else:
                features = block(features)
            maps[str(number)] = features
        if self.head is not None:
            maps[str(_HEAD)] = self.head(features)
        return [maps[tap] for tap in self.taps]
