"""The heads of CenterNet: each predicts one map from a feature map of stride 4 (Objects as Points, section 5)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from boxwright.nn.layers import ConvSettings, KernelRule, KernelSize, full_conv, make_conv, separable_conv

_KERAS = ConvSettings(norm=None, activation="RELU")


@dataclass(frozen=True)
class HeadLayers:
    """The hidden convolutions of a head, each followed by a ReLU.

    Attributes:
        widths: Channels of each.
        kernel_sizes: The side of each one's kernel, or (height, width).
        separable: Whether they are depthwise separable.
    """

    widths: tuple[int, ...] = (256,)
    kernel_sizes: tuple[KernelSize, ...] = (3,)
    separable: bool = False


class MapHead(nn.Sequential):
    """Hidden convolutions and a 1×1 convolution, `output`, to a map's channels."""

    def __init__(self, in_channels: int, channels: int, layers: HeadLayers, *, bias: float = 0.0) -> None:
        """Build the layers.

        Args:
            channels: Channels of the map.
            bias: The first value of the output's bias.
        """
        super().__init__()
        self.channels = channels
        make = separable_conv if layers.separable else full_conv
        for number, (width, kernel_size) in enumerate(zip(layers.widths, layers.kernel_sizes, strict=True)):
            self.add_module(f"hidden{number}", make(in_channels, width, kernel_size, _KERAS, bias=True))
            self.add_module(f"activation{number}", nn.ReLU(inplace=True))
            in_channels = width
        output = make_conv(in_channels, channels, 1, KernelRule(), bias=True)
        if output.bias is not None:
            nn.init.constant_(output.bias, bias)
        self.add_module("output", output)
