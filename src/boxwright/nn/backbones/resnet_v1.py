"""ResNet-50, 101 and 152, first version (He et al., 2016, table 1), as Keras and as TF-Slim lay them out.

In Keras's networks a stage's first block has the stride, in its first 1×1 convolution and its shortcut. TF-Slim's halve
the size after a stage's last block, so that its map is tapped before; their modules have the names of TF-Slim's scopes.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.layers import ConvSettings, MaxPool2d, conv_norm_act, make_activation
from boxwright.nn.network import Backbone

RESNET_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_WIDTHS = (64, 128, 256, 512)
_EXPANSION = 4


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions, added to the input or, if shapes differ, to its projection."""

    def __init__(
        self, in_channels: int, width: int, out_channels: int, stride: int, settings: ConvSettings, *, project: bool
    ) -> None:
        """Build the block.

        Args:
            stride: Stride of the first convolution and of the projection.
        """
        super().__init__()
        linear = replace(settings, activation="NONE")
        self.reduce = conv_norm_act(in_channels, width, 1, settings, stride=stride)
        self.convolve = conv_norm_act(width, width, 3, settings)
        self.expand = conv_norm_act(width, out_channels, 1, linear)
        self.shortcut = conv_norm_act(in_channels, out_channels, 1, linear, stride=stride) if project else nn.Identity()
        self.activation = make_activation(settings.activation)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C', H', W']."""
        outputs: Tensor = self.activation(self.expand(self.convolve(self.reduce(inputs))) + self.shortcut(inputs))
        return outputs


def _stage(
    count: int, in_channels: int, width: int, out_channels: int, stride: int, settings: ConvSettings
) -> nn.Sequential:
    first = Bottleneck(in_channels, width, out_channels, stride, settings, project=True)
    rest = (Bottleneck(out_channels, width, out_channels, 1, settings, project=False) for _ in range(count - 1))
    return nn.Sequential(first, *rest)


class ResNetV1Stage5(nn.Sequential):
    """The last stage, applied to crops of the map of stride 16."""

    def __init__(self, blocks: Sequence[int], settings: ConvSettings, *, stride: int = 2) -> None:
        """Build the stage.

        Args:
            stride: Of its first convolutions; 1 for crops already sampled at stride 2.
        """
        settings = replace(settings, force_bias=False)
        width = _WIDTHS[3]
        channels, out = _WIDTHS[2] * _EXPANSION, width * _EXPANSION
        super().__init__(*_stage(blocks[3], channels, width, out, stride, settings))
        self.out_channels = out


class ResNetV1(Backbone):
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
    ) -> None:
        """Build the network up to the last level.

        Args:
            levels: Pyramid levels to return (2 to 5): maps of stride 2 to that power.
        """
        super().__init__()
        # TF forces convolutions without a bias here, whatever conv_hyperparams say, to agree with TF-Slim's.
        settings = replace(settings, force_bias=False)

        def depth(channels: int) -> int:
            return max(int(channels * depth_multiplier), min_depth)

        self.levels = tuple(levels)
        channels = depth(64)
        self.stem = conv_norm_act(in_channels, channels, 7, settings, stride=2, padding="explicit")
        self.pool = MaxPool2d(3, 2)
        stages = []
        # Stages beyond the last level would be computed, and learned, for nothing.
        for number, (count, width) in enumerate(zip(blocks[: max(levels) - 1], _WIDTHS, strict=False)):
            out, stride = depth(width * _EXPANSION), 2 if number > 0 else 1
            stages.append(_stage(count, channels, depth(width), out, stride, settings))
            channels = out
        self.stages = nn.ModuleList(stages)
        self.channels = tuple(depth(_WIDTHS[level - 2] * _EXPANSION) for level in levels)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return one map per level, finest first."""
        features, outputs = self.pool(self.stem(inputs)), []
        for level, stage in enumerate(self.stages, start=2):
            features = stage(features)
            if level in self.levels:
                outputs.append(features)
        return outputs


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
