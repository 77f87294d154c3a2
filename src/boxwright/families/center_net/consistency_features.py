"""What DeepMAC's feature consistency compares: colors of the image, or features of the network.

Colors in CIE Lab, in which distances are about those that people see.

Dimensions: B batch, C channels, H W grid of cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.nn.ops.constants import constants

# sRGB's primaries and the white of daylight (D65, 2 degrees), in the digits that TensorFlow I/O has.
_TO_XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))
_WHITE = (0.95047, 1.0, 1.08883)


def lab_of_rgb(colors: Tensor) -> Tensor:
    """Return Lab for sRGB in 0..1, float [B, 3, H, W] both: L in 0..100, a and b about 0."""
    # Cubic interpolation and augmentation overshoot; a negative base of a power is NaN.
    colors = colors.clamp(min=0)
    linear = torch.where(colors > 0.04045, ((colors + 0.055) / 1.055) ** 2.4, colors / 12.92)
    matrix = torch.stack([constants(row, colors.device) for row in _TO_XYZ])
    relative = torch.einsum("bchw,oc->bohw", linear, matrix) / constants(_WHITE, colors.device)[:, None, None]
    root = torch.where(relative > 0.008856, relative.clamp(min=1e-6) ** (1 / 3), 7.787 * relative + 16 / 116)
    x, y, z = root.unbind(1)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], dim=1)


class ConsistencyFeatures(Protocol):
    """Gives each cell what is compared with its neighbors'."""

    def __call__(self, inputs: Tensor, features: Sequence[Tensor]) -> Tensor:
        """Return float [B, C, H, W], without a graph.

        Args:
            inputs: float [B, 3, 4 · H, 4 · W]; red, green and blue as the network reads them.
            features: The maps [B, C, H, W] of each stage.
        """
        ...


@dataclass(frozen=True)
class LabColors:
    """Colors in Lab.

    Attributes:
        scale: Of the network's inputs: `value × scale + offset` of red, green and blue in 0..255.
    """

    scale: tuple[float, float, float]
    offset: tuple[float, float, float]

    @torch.no_grad()
    def __call__(self, inputs: Tensor, features: Sequence[Tensor]) -> Tensor:
        """Return float [B, 3, H, W]."""
        small = F.interpolate(inputs.float(), size=features[-1].shape[-2:], mode="bilinear", align_corners=False)
        scale, offset = (constants(numbers, inputs.device)[:, None, None] for numbers in (self.scale, self.offset))
        return lab_of_rgb((small - offset) / scale / 255)


@dataclass(frozen=True)
class LastFeatures:
    """The last stage's features."""

    @torch.no_grad()
    def __call__(self, inputs: Tensor, features: Sequence[Tensor]) -> Tensor:
        """Return float [B, C, H, W]."""
        del inputs
        return features[-1].detach().float()
