"""SRN's two sets of feature maps (Chi et al., 2019, section 3.1), as released.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.layers import ConvSettings, make_conv

_SIXTH, _SEVENTH = 1024, 256


class CoarserMaps(nn.Module):
    """Append C6 and C7 to a backbone's C2–C5, each of half the size, without an activation in between."""

    def __init__(self, in_channels: Sequence[int], settings: ConvSettings) -> None:
        """Build both convolutions.

        Args:
            in_channels: Channels of the backbone's maps; C6 and C7 have at most those of the coarsest.
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
    """Project C2–C7 to one depth for the first step."""

    def __init__(self, in_channels: Sequence[int], depth: int, settings: ConvSettings) -> None:
        """Build a 1×1 convolution to `depth` channels for each map."""
        super().__init__()
        self.project = nn.ModuleList([make_conv(c, depth, 1, settings.kernel, bias=True) for c in in_channels])

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return the maps, finest first."""
        return [project(level) for project, level in zip(self.project, features, strict=True)]


class SecondStepPyramid(nn.Module):
    """P2–P5 from C2–C5, coarse added to fine; P6 from C5's projection, P7 from P6: the second step's maps."""

    def __init__(
        self, in_channels: Sequence[int], depth: int, settings: ConvSettings, *, align_corners: bool = True
    ) -> None:
        """Build the pyramid.

        Args:
            align_corners: Whether upsampling aligns corner pixels, as in the release's PyTorch version, or the pixels'
                areas, as in later versions.
        """
        super().__init__()
        rule = settings.kernel
        self.laterals = nn.ModuleList([make_conv(c, depth, 1, rule, bias=True) for c in in_channels])
        self.smooth = nn.ModuleList([make_conv(depth, depth, 3, rule, bias=True) for _ in in_channels])
        self.extra = nn.ModuleList([make_conv(depth, depth, 3, rule, stride=2, bias=True, padding=1) for _ in range(2)])
        self.align_corners = align_corners
        self.channels = (depth,) * (len(in_channels) + 2)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return P2–P7 for C2–C5 (coarser maps are ignored), finest first."""
        projected = [lateral(level) for lateral, level in zip(self.laterals, features, strict=False)]
        total, sums = projected[-1], [projected[-1]]
        for finer in reversed(projected[:-1]):
            enlarged = F.interpolate(total, size=finer.shape[-2:], mode="bilinear", align_corners=self.align_corners)
            total = finer + enlarged
            sums.insert(0, total)
        levels = [smooth(level) for smooth, level in zip(self.smooth, sums, strict=True)]
        # The release takes P6 from C5's projection, where the paper's text has P5.
        coarser = projected[-1]
        for layer in self.extra:
            coarser = layer(coarser)
            levels.append(coarser)
        return levels
