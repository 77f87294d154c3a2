"""VGG-16 with fc6 (dilated) and fc7 as convolutions (SSD, section 3; RefineDet, section 3.1 and the authors' code).

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.models.activations import make_activation
from boxwright.models.backbones.backbone import Backbone
from boxwright.models.layers import Conv2d, ConvSettings, MaxPool2d, make_conv

# Channels of each convolution, stage by stage.
_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


@dataclass(frozen=True)
class VggReduction:
    """How the classifier's layers become convolutions, and which maps are returned.

    Attributes:
        norm_scales: Initial factors of the normalized maps: of conv4_3 and, if returned, of conv5_3.
        last_pool: (kernel size, stride) of the fifth pooling.
        dilation: Distance between the taps of fc6.
    """

    norm_scales: tuple[float, ...]
    last_pool: tuple[int, int]
    dilation: int


SSD_VGG = VggReduction((20.0,), (3, 1), 6)
REFINEDET_VGG = VggReduction((10.0, 8.0), (2, 2), 3)


class L2Norm(nn.Module):
    """Scale each location's features to unit length, then each channel by a learned factor (ParseNet)."""

    def __init__(self, channels: int, scale: float) -> None:
        """Make the layer."""
        super().__init__()
        self.scale = nn.Parameter(torch.full((channels,), scale))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the same shape."""
        # The squared length and the epsilon exceed the range of half precision.
        return F.normalize(inputs.float(), eps=1e-10).to(inputs.dtype) * self.scale[:, None, None].to(inputs.dtype)


class Vgg16(Backbone):
    """The convolutions of VGG-16 and its two converted layers.

    Attributes:
        channels: Channels of conv4_3, conv5_3 if returned, and fc7.
    """

    # The scales of normalized maps are the detector's.
    beyond_classifier = ("norms",)

    def __init__(self, settings: ConvSettings, reduction: VggReduction = SSD_VGG, *, in_channels: int = 3) -> None:
        """Build the network.

        Args:
            settings: Convolutions; they are not normalized and learn a bias.
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
        self.pool, self.last_pool = MaxPool2d(2, 2), MaxPool2d(*reduction.last_pool)
        self.norms = nn.ModuleList([L2Norm(512, scale) for scale in reduction.norm_scales])
        holes = reduction.dilation
        self.converted = nn.Sequential(
            rule.apply(Conv2d(512, 1024, 3, bias=True, padding=holes, dilation=holes)),
            make_activation(settings.activation),
            make_conv(1024, 1024, 1, rule, bias=True),
            make_activation(settings.activation),
        )
        self.channels = (*(512 for _ in reduction.norm_scales), 1024)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return conv4_3 (stride 8), conv5_3 (stride 16) if configured, and fc7 (stride 16 or 32)."""
        features = inputs
        for stage in self.stages[:-1]:
            fourth = stage(features)
            features = self.pool(fourth)
        fifth = self.stages[-1](features)
        # The network continues from maps that are not normalized.
        normalized = [norm(map) for norm, map in zip(self.norms, (fourth, fifth), strict=False)]
        return [*normalized, self.converted(self.last_pool(fifth))]
