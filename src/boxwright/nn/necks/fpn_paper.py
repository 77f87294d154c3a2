"""Feature pyramid network as in its paper (Lin et al., 2017, section 3), and in most two-stage detectors.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.layers import ConvSettings, make_conv


class PaperFeaturePyramid(nn.Module):
    """Project each map, add coarse to fine, smooth every level, and sample coarser levels from the last.

    Convolutions have a bias and neither normalization nor activation.
    """

    def __init__(
        self, in_channels: Sequence[int], depth: int, settings: ConvSettings, *, extra_levels: int = 0, pool: int = 1
    ) -> None:
        """Build the pyramid.

        Args:
            extra_levels: Number of coarser levels to append, each of half the size.
            pool: The side of their max pooling windows; 1 takes every second pixel.
        """
        super().__init__()
        self.laterals = nn.ModuleList([make_conv(c, depth, 1, settings.kernel, bias=True) for c in in_channels])
        self.smooth = nn.ModuleList([make_conv(depth, depth, 3, settings.kernel, bias=True) for _ in in_channels])
        self.extra_levels, self.pool = extra_levels, pool
        self.channels = (depth,) * (len(in_channels) + extra_levels)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return all levels, finest first."""
        total: Tensor | None = None
        levels: list[Tensor] = []
        for lateral, smooth, level in zip(
            reversed(self.laterals), reversed(self.smooth), reversed(features), strict=True
        ):
            projected = lateral(level)
            if total is not None:
                # To the finer map's size, not by 2: an odd size would not fit.
                projected = projected + F.interpolate(total, size=projected.shape[-2:], mode="nearest")
            total = projected
            levels.insert(0, smooth(total))
        for _ in range(self.extra_levels):
            levels.append(F.max_pool2d(levels[-1], self.pool, 2))
        return levels
