"""Feature pyramid networks (Lin et al., 2017): TF's for SSD, and the paper's (section 3), of most two-stage detectors.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.batch_norm import make_norm
from boxwright.nn.layers import ConvSettings, Padding, conv_norm_act, make_activation, make_conv, separable_conv


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


HandDown = Callable[[Tensor, Tensor], Tensor]


def unsmoothed(total: Tensor, level: Tensor) -> Tensor:
    """Return the sum, as the paper and TF-Slim pass it down."""
    del level
    return total


def smoothed(total: Tensor, level: Tensor) -> Tensor:
    """Return the smoothed level, as TF's Keras code passes it down."""
    del total
    return level


class FeaturePyramid(nn.Module):
    """Project each map, add coarse to fine, smooth, and append coarser maps."""

    def __init__(
        self,
        in_channels: Sequence[int],
        depth: int,
        settings: ConvSettings,
        *,
        extra_levels: int = 0,
        use_depthwise: bool = False,
        padding: Padding = "same",
        hand_down: HandDown = smoothed,
    ) -> None:
        """Build the pyramid.

        Args:
            extra_levels: Number of coarser levels to append, each by a convolution of stride 2.
            use_depthwise: Whether 3×3 convolutions are separable (FPNLite).
            hand_down: From a level's sum and the smoothed level, to the map added to the next finer level.
        """
        super().__init__()
        self.hand_down = hand_down

        def block(stride: int) -> nn.Sequential:
            if not use_depthwise:
                return conv_norm_act(depth, depth, 3, settings, stride=stride, padding=padding)
            conv = separable_conv(depth, depth, 3, settings, stride=stride, padding=padding, bias=settings.bias)
            return nn.Sequential(conv, make_norm(depth, settings.norm), make_activation(settings.activation))

        self.laterals = nn.ModuleList([make_conv(c, depth, 1, settings.kernel, bias=True) for c in in_channels])
        # TF leaves the coarsest map as projected: nothing has been enlarged into it.
        self.smooth = nn.ModuleList([block(1) for _ in in_channels[:-1]])
        self.extra = nn.ModuleList([block(2) for _ in range(extra_levels)])
        self.channels = (depth,) * (len(in_channels) + extra_levels)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return all levels, finest first."""
        above = self.laterals[-1](features[-1])
        levels = [above]
        for lateral, smooth, finer in zip(
            reversed(self.laterals[:-1]), reversed(self.smooth), reversed(features[:-1]), strict=True
        ):
            projected = lateral(finer)
            # TF repeats each pixel twice and crops where the finer map has an odd size.
            doubled = F.interpolate(above, scale_factor=2.0, mode="nearest")
            total = projected + doubled[..., : projected.shape[-2], : projected.shape[-1]]
            levels.insert(0, smooth(total))
            above = self.hand_down(total, levels[0])
        for layer in self.extra:
            levels.append(layer(levels[-1]))
        return levels
