"""VGG-16 with fc6 (dilated) and fc7 as convolutions (SSD, section 3; RefineDet, section 3.1 and the authors' code).

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.layers import Conv2d, ConvSettings, MaxPool2d, make_activation, make_conv
from boxwright.nn.network import Backbone

# Channels of each convolution, stage by stage.
_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


@dataclass(frozen=True)
class VggReduction:
    """How the classifier's layers become convolutions, and which maps are returned.

    Attributes:
        norm_scales: Initial factors of the normalized maps, each the last of a stage.
        last_pool: (kernel size, stride) of the fifth pooling.
        dilation: Distance between the taps of fc6.
        first: The stage of the first normalized map, counted from 0: 3 for conv4_3.
    """

    norm_scales: tuple[float, ...]
    last_pool: tuple[int, int]
    dilation: int
    first: int = 3

    @property
    def returned(self) -> range:
        """The stages whose last maps are normalized and returned."""
        return range(self.first, self.first + len(self.norm_scales))


# SSD's fifth pool keeps stride 16, which fc6 makes up for by twice RefineDet's dilation.
SSD_VGG = VggReduction((20.0,), (3, 1), 6)
REFINEDET_VGG = VggReduction((10.0, 8.0), (2, 2), 3)
# The maps and scales of S³FD (section 3.1), from which RefineDet's authors have their anchors of 4 strides.
FACE_VGG = VggReduction((10.0, 8.0, 5.0), (2, 2), 3, first=2)


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


class ConvertedLayer(Conv2d):
    """A dense layer of the classifier as a convolution, with a part of its units and pixels (SSD, section 3).

    Attributes:
        dense_shape: Of the classifier's kernel: [height, width, inputs, units].
        steps: Along each of these axes, the distance between values that are kept.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        side: int,
        *,
        dense_shape: tuple[int, int, int, int],
        steps: tuple[int, int, int, int],
        dilation: int = 1,
    ) -> None:
        """Make the layer; a `KernelRule` fills it."""
        padding = dilation * (side // 2)
        super().__init__(in_channels, out_channels, side, bias=True, padding=padding, dilation=dilation)
        self.dense_shape, self.steps = dense_shape, steps


class Vgg16(Backbone):
    """The convolutions of VGG-16 and its two converted layers.

    Attributes:
        channels: Channels of the normalized maps, finest first, and of fc7.
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
        # Caffe rounds the size of a pooled map up, as SAME padding does: 75 becomes 38 in SSD300.
        self.pool, self.last_pool = MaxPool2d(2, 2), MaxPool2d(*reduction.last_pool)
        self.returned = reduction.returned
        outputs = [_STAGES[stage][-1] for stage in self.returned]
        self.norms = nn.ModuleList([L2Norm(*pair) for pair in zip(outputs, reduction.norm_scales, strict=True)])
        # Every fourth of 4096 units, and every third pixel of fc6's 7×7 window.
        fc6, fc7 = ((7, 7, 512, 4096), (3, 3, 1, 4)), ((1, 1, 4096, 4096), (1, 1, 4, 4))
        self.converted = nn.Sequential(
            rule.apply(ConvertedLayer(512, 1024, 3, dense_shape=fc6[0], steps=fc6[1], dilation=reduction.dilation)),
            make_activation(settings.activation),
            rule.apply(ConvertedLayer(1024, 1024, 1, dense_shape=fc7[0], steps=fc7[1])),
            make_activation(settings.activation),
        )
        self.channels = (*outputs, 1024)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the normalized maps (conv3_3 has stride 4, conv4_3 8, conv5_3 16), and fc7 (stride 16 or 32)."""
        features, returned = inputs, []
        for number, stage in enumerate(self.stages):
            features = stage(self.pool(features) if number > 0 else features)
            if number in self.returned:
                returned.append(features)
        # The network continues from maps that are not normalized.
        normalized = [norm(map) for norm, map in zip(self.norms, returned, strict=True)]
        return [*normalized, self.converted(self.last_pool(features))]
