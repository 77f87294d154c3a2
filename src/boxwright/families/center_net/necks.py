"""CenterNet's necks: from a backbone's maps to one map of stride 4 (Objects as Points, appendix A).

Instead of deformable convolutions they have plain ones, as in TF.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.activations import make_activation
from boxwright.nn.batch_norm import make_norm
from boxwright.nn.layers import ConvNormAct, ConvSettings, Deconv2d, conv_norm_act, make_conv

Interpolation = Literal["nearest", "bilinear"]
# Makes a 3×3 convolution with a bias, given channels in and out.
MakeConv = Callable[[int, int], nn.Module]


class DoublingDeconv(nn.Module):
    """A 3×3 transposed convolution of stride 2, normalized and activated; TF pads it below and right."""

    def __init__(self, channels: int, settings: ConvSettings) -> None:
        """Build the layers."""
        super().__init__()
        self.deconv = Deconv2d(channels, channels, 3, settings.kernel, bias=True)
        self.norm = make_norm(channels, settings.norm)
        self.activation = make_activation(settings.activation)

    def forward(self, input: Tensor) -> Tensor:
        """Return [B, C, 2H, 2W]."""
        outputs: Tensor = self.activation(self.norm(self.deconv(input)[..., :-1, :-1]))
        return outputs


class Deconvolutions(nn.Module):
    """The coarsest map, doubled several times: a convolution and a transposed one each."""

    def __init__(self, in_channels: int, widths: Sequence[int], kernel_size: int, settings: ConvSettings) -> None:
        """Build the layers; `kernel_size` is that of the plain convolutions, whose settings have a bias."""
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in zip((in_channels, *widths), widths, strict=False):
            layers += [conv_norm_act(before, width, kernel_size, settings), DoublingDeconv(width, settings)]
        self.layers = nn.Sequential(*layers)
        self.channels = (widths[-1],)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Return one map [B, C, H, W] of stride 4."""
        return [self.layers(maps[-1])]


class TopDownMap(nn.Module):
    """A feature pyramid's top-down pathway, of which only the finest map is kept (Lin et al., 2017, figure 3)."""

    def __init__(
        self,
        channels: Sequence[int],
        widths: Sequence[int],
        make: MakeConv,
        settings: ConvSettings,
        *,
        interpolation: Interpolation = "nearest",
    ) -> None:
        """Build the pathway.

        Args:
            channels: Channels of the backbone's maps, finest first.
            widths: Channels of the merged maps, finest first, one fewer.
            make: Makes the convolution that smooths a merged map.
            settings: Of the 1×1 convolutions, and of normalization and activation.
            interpolation: How a map is enlarged.
        """
        super().__init__()
        self.interpolation = interpolation
        self.laterals = nn.ModuleList(
            make_conv(into, out, 1, settings.kernel, bias=True)
            for into, out in zip(channels, (*widths, widths[-1]), strict=True)
        )
        finer = (widths[0], *widths[:-1])
        self.smooth = nn.ModuleList(
            ConvNormAct(make(into, out), make_norm(out, settings.norm), make_activation(settings.activation))
            for into, out in zip(widths, finer, strict=True)
        )
        self.channels = (widths[0],)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Return one map [B, C, H, W], of the size of the finest."""
        *finer, top = (lateral(features) for lateral, features in zip(self.laterals, maps, strict=True))
        for features, smooth in zip(reversed(finer), reversed(list(self.smooth)), strict=True):
            top = smooth(features + F.interpolate(top, scale_factor=2, mode=self.interpolation))
        return [top]
