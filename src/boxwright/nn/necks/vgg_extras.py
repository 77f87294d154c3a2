"""The smaller maps that SSD appends to VGG-16 (SSD, figure 2).

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from boxwright.nn.activations import make_activation
from boxwright.nn.layers import ConvSettings, make_conv


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
