"""What DeepMAC's feature consistency compares: colors of the image, or features of the network.

Dimensions: B batch, C channels, H W grid of cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.families.center_net.lab_colors import lab_of_rgb
from boxwright.nn.ops.constants import constants


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
        scale, offset = (constants(one, inputs.device)[:, None, None] for one in (self.scale, self.offset))
        return lab_of_rgb((small - offset) / scale / 255)


@dataclass(frozen=True)
class LastFeatures:
    """The last stage's features."""

    @torch.no_grad()
    def __call__(self, inputs: Tensor, features: Sequence[Tensor]) -> Tensor:
        """Return float [B, C, H, W]."""
        del inputs
        return features[-1].detach().float()
