"""ResNets as in Keras's applications: v1 (He et al., 2016, table 1) and v2 ("Identity Mappings", figure 4e).

They differ from those of TF's other detectors: v1's convolutions learn a bias, pooling pads on all sides, and v2's
stages shrink the image in their last block. The two smallest have v2's blocks with two convolutions.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.activations import make_activation
from boxwright.nn.backbones.backbone import Backbone
from boxwright.nn.backbones.resnet_v1 import Bottleneck
from boxwright.nn.batch_norm import make_norm
from boxwright.nn.layers import ConvSettings, conv_norm_act, make_conv

_WIDTHS = (64, 128, 256, 512)
_EXPANSION = 4


@dataclass(frozen=True)
class ResNetLayout:
    """The blocks of each stage; `basic` ones have two 3×3 convolutions, others are bottlenecks."""

    blocks: tuple[int, ...]
    basic: bool = False

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels of each stage."""
        return tuple(width if self.basic else width * _EXPANSION for width in _WIDTHS)


# By their number of layers.
KERAS_RESNETS = {
    18: ResNetLayout((2, 2, 2, 2), basic=True),
    34: ResNetLayout((3, 4, 6, 3), basic=True),
    50: ResNetLayout((3, 4, 6, 3)),
    101: ResNetLayout((3, 4, 23, 3)),
}


class KerasResNetV1(Backbone):
    """A 7×7 stem and four stages of bottlenecks, whose first block shrinks the image."""

    def __init__(self, layout: ResNetLayout, settings: ConvSettings, *, in_channels: int = 3) -> None:
        """Build the network."""
        super().__init__()
        settings = replace(settings, force_bias=True)
        self.stem = conv_norm_act(in_channels, _WIDTHS[0], 7, settings, stride=2, padding="explicit")
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.channels = layout.channels
        stages, before = [], _WIDTHS[0]
        for number, (count, width, channels) in enumerate(zip(layout.blocks, _WIDTHS, self.channels, strict=True)):
            first = Bottleneck(before, width, channels, 2 if number else 1, settings, project=True)
            rest = (Bottleneck(channels, width, channels, 1, settings, project=False) for _ in range(count - 1))
            stages.append(nn.Sequential(first, *rest))
            before = channels
        self.stages = nn.ModuleList(stages)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the maps of strides 4, 8, 16 and 32."""
        features, maps = self.pool(self.stem(inputs)), []
        for stage in self.stages:
            features = stage(features)
            maps.append(features)
        return maps


class PreactivationBlock(nn.Module):
    """Normalization and activation before the first convolution; the sum is neither normalized nor activated.

    A projection has a stride of 1, whatever the block's; without one, the input is subsampled.
    """

    def __init__(
        self, in_channels: int, width: int, stride: int, settings: ConvSettings, *, basic: bool, project: bool
    ) -> None:
        """Build a block with two 3×3 convolutions (`basic`), or with 1×1, 3×3 and 1×1 ones."""
        super().__init__()
        self.stride = stride
        self.norm = make_norm(in_channels, settings.norm)
        self.activation = make_activation(settings.activation)
        strided = conv_norm_act(width, width, 3, settings, stride=stride, padding="explicit")
        body: list[nn.Module]
        if basic:
            channels, body = width, [conv_norm_act(in_channels, width, 3, settings), strided]
        else:
            channels = width * _EXPANSION
            expand = make_conv(width, channels, 1, settings.kernel, bias=True)
            body = [conv_norm_act(in_channels, width, 1, settings), strided, expand]
        self.body = nn.Sequential(*body)
        self.project = make_conv(in_channels, channels, 1, settings.kernel, bias=True) if project else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C', H', W']."""
        ready = self.activation(self.norm(inputs))
        kept = inputs[..., :: self.stride, :: self.stride] if self.project is None else self.project(ready)
        outputs: Tensor = kept + self.body(ready)
        return outputs


class PreactivationResNet(Backbone):
    """A 7×7 convolution and four stages of pre-activation blocks, whose last block shrinks the image.

    A classifier's normalization after the last stage is not part of it.
    """

    def __init__(
        self,
        layout: ResNetLayout,
        settings: ConvSettings,
        *,
        strides: tuple[int, ...],
        outputs: Sequence[int],
        in_channels: int = 3,
    ) -> None:
        """Build the network.

        Args:
            strides: The stride of each stage.
            outputs: The stages whose maps are returned, from 0.
        """
        super().__init__()
        self.stem = make_conv(in_channels, _WIDTHS[0], 7, settings.kernel, stride=2, bias=True, padding="explicit")
        self.outputs = tuple(outputs)
        self.channels = tuple(layout.channels[number] for number in outputs)
        stages, before = [], _WIDTHS[0]
        for count, width, stride, channels in zip(layout.blocks, _WIDTHS, strides, layout.channels, strict=True):
            blocks = []
            for number in range(count):
                step = stride if number == count - 1 else 1
                blocks.append(
                    PreactivationBlock(before, width, step, settings, basic=layout.basic, project=number == 0)
                )
                before = channels
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the maps of the chosen stages, finest first."""
        # Padded with 0 rather than minus infinity, which matters as nothing is activated before.
        features, maps = F.max_pool2d(F.pad(self.stem(inputs), (1, 1, 1, 1)), 3, 2), []
        for number, stage in enumerate(self.stages):
            features = stage(features)
            if number in self.outputs:
                maps.append(features)
        return maps
