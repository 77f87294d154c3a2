"""The base class of backbones."""

from __future__ import annotations

from torch import Tensor, nn


class Backbone(nn.Module):
    """An image classifier's layers, up to the last requested feature map.

    Attributes:
        channels: Channels of each map that `forward` returns, finest first.
        beyond_classifier: Modules within it that the image classifier lacks.
    """

    channels: tuple[int, ...]
    beyond_classifier: tuple[str, ...] = ()

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the feature maps, finest first."""
        raise NotImplementedError


class LastMap(nn.Module):
    """A part of a backbone applied to crops, of which only the coarsest map is returned."""

    def __init__(self, body: Backbone) -> None:
        """Wrap the part."""
        super().__init__()
        self.body = body

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [N, C, H, W]."""
        maps: list[Tensor] = self.body(inputs)
        return maps[-1]
