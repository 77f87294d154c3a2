"""MobileNetV1 (Howard et al., 2017, table 1), with TF's depth rules.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from boxwright.nn.batch_norm import make_norm
from boxwright.nn.layers import ConvSettings, Padding, conv_norm_act, make_activation, separable_conv
from boxwright.nn.network import Backbone

# (channels, stride) of the separable blocks 1 to 13.
_BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (1024, 2),
    (1024, 1),
)


class MobileNetV1(Backbone):
    """A stem and 13 depthwise separable blocks."""

    def __init__(
        self,
        settings: ConvSettings,
        *,
        taps: Sequence[int] = (11, 13),
        depth_multiplier: float = 1.0,
        min_depth: int = 8,
        padding: Padding = "same",
        narrow: bool = False,
        in_channels: int = 3,
    ) -> None:
        """Build the network up to the last tap.

        Args:
            taps: Numbers of the blocks (1 to 13) whose outputs are returned.
            narrow: Whether the last two blocks have 512 and 256 channels, as in TF's FPNLite.
        """
        super().__init__()
        layout = (*_BLOCKS[:11], (512, 2), (256, 1)) if narrow else _BLOCKS

        def depth(channels: int) -> int:
            # Cut off, where MobileNetV2 rounds to a multiple of 8.
            return max(int(channels * depth_multiplier), min_depth)

        self.taps = tuple(taps)
        channels = depth(32)
        self.stem = conv_norm_act(in_channels, channels, 3, settings, stride=2, padding=padding)
        blocks = []
        for wanted, stride in layout[: max(taps)]:
            blocks.append(
                nn.Sequential(
                    conv_norm_act(channels, channels, 3, settings, stride=stride, depthwise=True, padding=padding),
                    conv_norm_act(channels, depth(wanted), 1, settings),
                )
            )
            channels = depth(wanted)
        self.blocks = nn.ModuleList(blocks)
        self.channels = tuple(depth(layout[tap - 1][0]) for tap in taps)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return one map per tap, finest first."""
        features, outputs = self.stem(inputs), []
        for number, block in enumerate(self.blocks, start=1):
            features = block(features)
            if number in self.taps:
                outputs.append(features)
        return outputs


class MobileNetV1Tail(nn.Module):
    """The last two blocks as TF's two-stage detector applies them to crops, with nothing between the two kernels.

    Attributes:
        channels: Of the output.
    """

    channels = 1024

    def __init__(self, settings: ConvSettings, in_channels: int) -> None:
        """Build the blocks."""
        super().__init__()
        for number, (into, stride) in enumerate(((in_channels, 2), (self.channels, 1)), start=12):
            block = nn.Sequential(
                separable_conv(into, self.channels, 3, settings, stride=stride),
                make_norm(self.channels, settings.norm),
                make_activation(settings.activation),
            )
            self.add_module(f"Conv2d_{number}_pointwise", block)

    def forward(self, crops: Tensor) -> Tensor:
        """Return [N, 1024, ceil(h / 2), ceil(w / 2)] of crops [N, C, h, w]."""
        features = crops
        for block in self.children():
            features = block(features)
        return features
