"""RefineDet's transfer connection blocks, which pass the first step's features to the second (section 3.1, figure 2).

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from boxwright.base.errors import DataError
from boxwright.nn.activations import make_activation
from boxwright.nn.batch_norm import make_norm
from boxwright.nn.layers import ConvSettings, Deconv2d, conv_norm_act


class TransferConnection(nn.Module):
    """Project each map to one depth, add the next coarser result, enlarged twice, and smooth."""

    def __init__(
        self,
        in_channels: Sequence[int],
        depth: int,
        settings: ConvSettings,
        *,
        deconvolution_kernel_size: int = 2,
    ) -> None:
        """Build the blocks.

        Args:
            in_channels: Channels of each level, finest first, each half as large as the one before.
            deconvolution_kernel_size: 2 as in the authors' release, or 4 as in their figure.
        """
        super().__init__()
        self.lateral, self.linear, self.smooth = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.enlarge = nn.ModuleList()
        for channels in in_channels:
            self.lateral.append(conv_norm_act(channels, depth, 3, settings))
            self.linear.append(conv_norm_act(depth, depth, 3, replace(settings, activation="NONE")))
            self.smooth.append(conv_norm_act(depth, depth, 3, settings))
        for _ in in_channels[1:]:
            self.enlarge.append(_deconvolution(depth, deconvolution_kernel_size, settings))
        self.activation = make_activation(settings.activation)
        self.channels = (depth,) * len(in_channels)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return one map [B, depth, H, W] per level, finest first.

        Raises:
            DataError: If a map is not twice as large as the next.
        """
        results: list[Tensor] = []
        for level in reversed(range(len(features))):
            # Not activated yet: the sum with the coarser map is (figure 2).
            transferred = self.linear[level](self.lateral[level](features[level]))
            if results:
                enlarged = self.enlarge[level](results[-1])
                if enlarged.shape != transferred.shape:
                    raise DataError(
                        f"transfer connection: map {_size(transferred)} does not fit {_size(results[-1])} doubled; "
                        "the input's sides must be multiples of the coarsest level's stride"
                    )
                transferred = transferred + enlarged
            results.append(self.smooth[level](self.activation(transferred)))
        return results[::-1]


def _size(map: Tensor) -> str:
    return f"{map.shape[-2]}×{map.shape[-1]}"


def _deconvolution(depth: int, kernel_size: int, settings: ConvSettings) -> nn.Sequential:
    """Return a layer that doubles height and width, normalized like convolutions but not activated."""
    layer = Deconv2d(depth, depth, kernel_size, settings.kernel, bias=settings.bias)
    return nn.Sequential(layer, make_norm(depth, settings.norm))
