"""VGG-16 as SSD reduces it (Liu et al., 2016, section 3): fc6 and fc7 become convolutions, fc6 with holes.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.models.layers import Conv2d, ConvSettings, MaxPool2d, make_activation, make_conv

__all__ = ["L2Norm", "Vgg16"]

# Channels of each convolution, stage by stage.
_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class L2Norm(nn.Module):
    """Scale each location's features to one length, then each channel by a learnt factor (ParseNet)."""

    def __init__(self, channels: int, scale: float) -> None:
        """Make the layer.

        Args:
            channels: Channels.
            scale: What every factor starts with.
        """
        super().__init__()
        self.scale = nn.Parameter(torch.full((channels,), scale))

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalize.

        Args:
            inputs: [B, C, H, W].

        Returns:
            The same shape.
        """
        return F.normalize(inputs) * self.scale[:, None, None]


class Vgg16(nn.Module):
    """The convolutions of VGG-16 and its two converted layers.

    Attributes:
        channels: Channels of the two maps that `forward` returns: conv4_3, normalized, and fc7.
    """

    def __init__(self, settings: ConvSettings, *, in_channels: int = 3) -> None:
        """Build the network.

        Args:
            settings: Convolutions; they are not normalized and learn a bias.
            in_channels: Channels of the image.
        """
        super().__init__()
        rule, channels = settings.kernel, in_channels
        stages = []
        for widths in _STAGES:
            layers: list[nn.Module] = []
            for width in widths:
                layers += [make_conv(channels, width, 3, rule, bias=True), make_activation(settings.activation)]
                channels = width
            stages.append(nn.Sequential(*layers))
        self.stages = nn.ModuleList(stages)
        self.pool, self.last_pool = MaxPool2d(2, 2), MaxPool2d(3, 1)
        self.norm = L2Norm(512, 20.0)
        self.converted = nn.Sequential(
            rule.apply(Conv2d(512, 1024, 3, bias=True, padding=6, dilation=6)),
            make_activation(settings.activation),
            make_conv(1024, 1024, 1, rule, bias=True),
            make_activation(settings.activation),
        )
        self.channels = (512, 1024)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Compute both maps.

        Args:
            inputs: float [B, C, H, W], RGB in 0..255 less the mean.

        Returns:
            conv4_3 (stride 8) and fc7 (stride 16).
        """
        features = inputs
        for stage in self.stages[:-1]:
            fourth = stage(features)
            features = self.pool(fourth)
        features = self.last_pool(self.stages[-1](features))
        return [self.norm(fourth), self.converted(features)]
