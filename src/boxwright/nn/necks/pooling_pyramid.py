"""Pooling pyramid (Jin et al., 2018): each map is a max pooling of the previous one.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from torch import Tensor, nn

from boxwright.nn.layers import ConvSettings, MaxPool2d, conv_norm_act


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
