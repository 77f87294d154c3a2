"""One coarser level, by a bottleneck (RefineDet with ResNet-101, section 4: `res6`).

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from boxwright.nn.backbones.resnet_v1 import Bottleneck
from boxwright.nn.layers import ConvSettings


class ResidualLevel(nn.Module):
    """Append a map of half the size to the backbone's."""

    def __init__(self, in_channels: Sequence[int], width: int, out_channels: int, settings: ConvSettings) -> None:
        """Build the bottleneck."""
        super().__init__()
        self.extra = Bottleneck(in_channels[-1], width, out_channels, 2, settings, project=True)
        self.channels = (*in_channels, out_channels)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return all maps, finest first."""
        return [*features, self.extra(features[-1])]
