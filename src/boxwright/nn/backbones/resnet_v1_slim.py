"""ResNet-50, 101 and 152, first version (He et al., 2016, table 1), as TF-Slim lays them out for detection.

Keras's networks halve the size in a stage's first convolution, TF-Slim's after its last block, so that a stage's map is
tapped before it is halved. Modules are named by TF-Slim's scopes.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.layers import ConvSettings, MaxPool2d, conv_norm_act
from boxwright.nn.network import Backbone

_WIDTHS = (64, 128, 256, 512)
_EXPANSION = 4


class BottleneckV1(nn.Module):
    """1×1, 3×3 and 1×1 convolutions, added to the input or, if channels differ, to its projection; then a ReLU."""

    def __init__(self, in_channels: int, width: int, settings: ConvSettings, dilation: int = 1) -> None:
        """Build the block.

        Args:
            width: Inner channels; a quarter of the output's.
            dilation: Distance between the taps of the 3×3 kernel.
        """
        super().__init__()
        out, linear = width * _EXPANSION, replace(settings, activation="NONE")
        self.shortcut = conv_norm_act(in_channels, out, 1, linear) if in_channels != out else nn.Identity()
        self.conv1 = conv_norm_act(in_channels, width, 1, settings)
        self.conv2 = conv_norm_act(width, width, 3, settings, dilation=dilation)
        self.conv3 = conv_norm_act(width, out, 1, linear)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C', H, W]."""
        return F.relu(self.shortcut(inputs) + self.conv3(self.conv2(self.conv1(inputs))))


def _block(count: int, in_channels: int, width: int, settings: ConvSettings, dilation: int = 1) -> nn.Sequential:
    """Return a sequence of units named by their scopes."""
    stage = nn.Sequential()
    for unit in range(1, count + 1):
        block = nn.Sequential()
        channels = in_channels if unit == 1 else width * _EXPANSION
        block.add_module("bottleneck_v1", BottleneckV1(channels, width, settings, dilation))
        stage.add_module(f"unit_{unit}", block)
    return stage


class ResNetV1SlimBlock4(nn.Module):
    """The last block, applied to crops without changing their size."""

    def __init__(self, blocks: Sequence[int], settings: ConvSettings) -> None:
        """Build the block."""
        super().__init__()
        self.slim_scope = f"resnet_v1_{3 * sum(blocks) + 2}"
        self.block4 = _block(blocks[3], _WIDTHS[2] * _EXPANSION, _WIDTHS[3], settings)
        self.channels = (_WIDTHS[3] * _EXPANSION,)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [N, C', h, w]."""
        outputs: Tensor = self.block4(inputs)
        return outputs


class ResNetV1Slim(Backbone):
    """A 7×7 stem and four stages of bottlenecks."""

    def __init__(
        self,
        blocks: Sequence[int],
        settings: ConvSettings,
        *,
        levels: Sequence[int] = (3, 4, 5),
        depth_multiplier: float = 1.0,
        min_depth: int = 8,
        in_channels: int = 3,
        coarsest_stride: int = 32,
    ) -> None:
        """Build the network up to the last level.

        Args:
            levels: Pyramid levels to return (2 to 5): maps of stride 2 to that power.
            coarsest_stride: 8, 16 or 32: coarser maps keep this stride, with dilated convolutions.
        """
        super().__init__()
        # Three convolutions per block, the stem, and the classifier.
        self.slim_scope = f"resnet_v1_{3 * sum(blocks) + 2}"
        self.levels = tuple(levels)
        channels = 64
        self.conv1 = conv_norm_act(in_channels, channels, 7, settings, stride=2, padding="explicit")
        self.pool = MaxPool2d(3, 2)
        self.stages: list[str] = []
        self.halved: list[bool] = []
        widths = [max(int(width * depth_multiplier), min_depth) for width in _WIDTHS]
        stride, dilation = 4, 1
        for number, (count, width) in enumerate(zip(blocks[: max(levels) - 1], widths, strict=False), start=1):
            # The first stage keeps the size that the pool has left.
            self.halved.append(number > 1 and stride < coarsest_stride)
            if self.halved[-1]:
                stride *= 2
            elif number > 1:
                dilation *= 2
            self.stages.append(f"block{number}")
            self.add_module(self.stages[-1], _block(count, channels, width, settings, dilation))
            channels = width * _EXPANSION
        self.channels = tuple(widths[level - 2] * _EXPANSION for level in levels)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return one map per level, finest first."""
        features, outputs = self.pool(self.conv1(inputs)), []
        for level, (name, halved) in enumerate(zip(self.stages, self.halved, strict=True), start=2):
            features = self.get_submodule(name)(features[..., ::2, ::2] if halved else features)
            if level in self.levels:
                outputs.append(features)
        return outputs
