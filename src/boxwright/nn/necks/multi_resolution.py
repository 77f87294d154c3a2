"""SSD's extra feature maps, each smaller and convolved from the previous one, also VGG-16's (SSD, figure 2).

In a pooling pyramid (Jin et al., 2018) each map is a max pooling of the previous one.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from boxwright.nn.layers import ConvSettings, MaxPool2d, Padding, conv_norm_act, make_activation, make_conv


class PoolingPyramid(nn.Module):
    """Project the backbone's map, if configured, and pool it repeatedly."""

    def __init__(self, in_channels: int, depth: int, settings: ConvSettings, *, levels: int) -> None:
        """Build the pyramid.

        Args:
            depth: Channels of every level; 0 keeps the backbone's, without a projection.
        """
        super().__init__()
        self.project = conv_norm_act(in_channels, depth, 1, settings) if depth else nn.Identity()
        self.pool = MaxPool2d(2, 2)
        self.channels = (depth or in_channels,) * levels

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return all levels, finest first."""
        (last,) = features
        levels = [self.project(last)]
        while len(levels) < len(self.channels):
            levels.append(self.pool(levels[-1]))
        return levels


class MultiResolutionFeatureMaps(nn.Module):
    """Append smaller maps to the backbone's."""

    def __init__(
        self,
        in_channels: Sequence[int],
        extra_channels: Sequence[int],
        settings: ConvSettings,
        *,
        kernels: Sequence[int] = (),
        use_depthwise: bool = False,
        padding: Padding = "same",
    ) -> None:
        """Build the extra layers: for each map a 1×1 convolution, then a 3×3 of stride 2.

        Args:
            extra_channels: The channels between and after the two convolutions of each map: (between, out, …).
            kernels: The side of each strided convolution; 3 if not given.
            use_depthwise: Whether the 3×3 is depthwise, followed by a 1×1.
        """
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels[-1]
        sides = [*kernels, *[3] * len(extra_channels)]
        for side, between, out in zip(sides, extra_channels[::2], extra_channels[1::2], strict=False):
            squeeze = conv_norm_act(channels, between, 1, settings)
            if use_depthwise:
                spread = nn.Sequential(
                    conv_norm_act(between, between, side, settings, stride=2, depthwise=True, padding=padding),
                    conv_norm_act(between, out, 1, settings),
                )
            else:
                spread = conv_norm_act(between, out, side, settings, stride=2, padding=padding)
            layers.append(nn.Sequential(squeeze, spread))
            channels = out
        self.extra = nn.ModuleList(layers)
        self.channels = (*in_channels, *extra_channels[1::2])

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return all maps, finest first."""
        maps = list(features)
        for layer in self.extra:
            maps.append(layer(maps[-1]))
        return maps


@dataclass(frozen=True)
class ExtraMap:
    """One map: a 1×1 convolution, then one that reduces the size.

    Attributes:
        kernel_size: The side of the second kernel.
        padding: Its padding, in pixels on every side.
    """

    between: int
    out: int
    kernel_size: int = 3
    stride: int = 2
    padding: int = 1


SSD300_EXTRAS = (
    ExtraMap(256, 512),
    ExtraMap(128, 256),
    ExtraMap(128, 256, stride=1, padding=0),
    ExtraMap(128, 256, stride=1, padding=0),
)
SSD512_EXTRAS = (
    ExtraMap(256, 512),
    ExtraMap(128, 256),
    ExtraMap(128, 256),
    ExtraMap(128, 256),
    # From a map of 2×2 to one of 1×1.
    ExtraMap(128, 256, kernel_size=4, stride=1),
)


class VggExtras(nn.Module):
    """Append smaller maps to the backbone's."""

    def __init__(self, in_channels: Sequence[int], extras: Sequence[ExtraMap], settings: ConvSettings) -> None:
        """Build the layers.

        Args:
            settings: Convolutions; they are not normalized and learn a bias.
        """
        super().__init__()
        rule, channels, layers = settings.kernel, in_channels[-1], []
        for extra in extras:
            squeeze = make_conv(channels, extra.between, 1, rule, bias=True)
            shrink = make_conv(
                extra.between,
                extra.out,
                extra.kernel_size,
                rule,
                stride=extra.stride,
                bias=True,
                padding=extra.padding,
            )
            active = (make_activation(settings.activation) for _ in range(2))
            layers.append(nn.Sequential(squeeze, next(active), shrink, next(active)))
            channels = extra.out
        self.extra = nn.ModuleList(layers)
        self.channels = (*in_channels, *(extra.out for extra in extras))

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return all maps, finest first."""
        maps = list(features)
        for layer in self.extra:
            maps.append(layer(maps[-1]))
        return maps
