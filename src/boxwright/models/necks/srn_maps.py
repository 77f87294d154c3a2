"""SRN's two sets of feature maps (Chi et al., 2019, section 3.1), as released.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.models.layers import ConvSettings, make_conv

_SIXTH, _SEVENTH = 1024, 256


class CoarserMaps(nn.Module):
    """Append C6 and C7 to a backbone's C2–C5, each of half the size, without an activation between.

    Attributes:
        channels: Channels of each map that `forward` returns.
    """

    def __init__(self, in_channels: Sequence[int], settings: ConvSettings) -> None:
        """Build both convolutions.

        Args:
            in_channels: Channels of the backbone's maps; C6 and C7 have no more than the coarsest of them.
        """
        super().__init__()
        widths = (in_channels[-1], min(_SIXTH, in_channels[-1]), min(_SEVENTH, in_channels[-1]))
        self.extra = nn.ModuleList(
            [make_conv(a, b, 3, settings.kernel, stride=2, bias=True, padding=1) for a, b in pairwise(widths)]
        )
        self.channels = (*in_channels, *widths[1:])

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return all six maps, finest first."""
        maps = list(features)
        for layer in self.extra:
            maps.append(layer(maps[-1]))
        return maps


class FirstStepMaps(nn.Module):
    """Bring C2–C7 to one depth, each by itself: what the first step sees."""

    def __init__(self, in_channels: Sequence[int], depth: int, settings: ConvSettings) -> None:
        """Build a 1×1 convolution for each map.

        Args:
            depth: Channels of what `forward` returns.
        """
        super().__init__()
        self.project = nn.ModuleList([make_conv(c, depth, 1, settings.kernel, bias=True) for c in in_channels])

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return the maps, finest first."""
        return [project(level) for project, level in zip(self.project, features, strict=True)]


class SecondStepPyramid(nn.Module):
    """P2–P5 from C2–C5, coarse added to fine; P6 from C5's projection, P7 from P6: what the second step sees.

    Attributes:
        channels: Channels of each map that `forward` returns.
    """

    def __init__(
        self, in_channels: Sequence[int], depth: int, settings: ConvSettings, *, align_corners: bool = True
    ) -> None:
        """Build the pyramid.

        Args:
            in_channels: Channels of C2–C5.
            align_corners: Whether corner pixels lie on each other where a coarser map is enlarged, as in the PyTorch
                of the release; without, its pixels' areas do, as in later ones.
        """
        super().__init__()
        rule = settings.kernel
        self.laterals = nn.ModuleList([make_conv(c, depth, 1, rule, bias=True) for c in in_channels])
        self.smooth = nn.ModuleList([make_conv(depth, depth, 3, rule, bias=True) for _ in in_channels])
        self.extra = nn.ModuleList([make_conv(depth, depth, 3, rule, stride=2, bias=True, padding=1) for _ in range(2)])
        self.align_corners = align_corners
        self.channels = (depth,) * (len(in_channels) + 2)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return P2–P7 for C2–C5 (what is coarser is not looked at), finest first."""
        projected = [lateral(level) for lateral, level in zip(self.laterals, features, strict=False)]
        total, sums = projected[-1], [projected[-1]]
        for finer in reversed(projected[:-1]):
            enlarged = F.interpolate(total, size=finer.shape[-2:], mode="bilinear", align_corners=self.align_corners)
            total = finer + enlarged
            sums.insert(0, total)
        levels = [smooth(level) for smooth, level in zip(self.smooth, sums, strict=True)]
        coarser = projected[-1]
        for layer in self.extra:
            coarser = layer(coarser)
            levels.append(coarser)
        return levels
