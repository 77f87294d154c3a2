"""What every backbone offers."""

from __future__ import annotations

from torch import Tensor, nn


class Backbone(nn.Module):
    """An image classifier's layers, up to the last feature map that is wanted.

    Attributes:
        channels: Channels of each map that `forward` returns, finest first.
        beyond_classifier: Modules within it that the image classifier has not.
    """

    channels: tuple[int, ...]
    beyond_classifier: tuple[str, ...] = ()

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the feature maps, finest first."""
        raise NotImplementedError


class LastMap(nn.Module):
    """A part of a backbone that looks at crops: its coarsest map alone."""

    def __init__(self, body: Backbone) -> None:
        """Keep the part."""
        super().__init__()
        self.body = body

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [N, C, H, W]."""
        maps: list[Tensor] = self.body(inputs)
        return maps[-1]
