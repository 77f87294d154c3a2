"""Inception v2 (Ioffe and Szegedy, 2015, figure 5) and v3 (Szegedy et al., 2016, table 1), as TF-Slim lays them out.

Modules are named by TF-Slim's scopes, some of which are misnamed, so that variable names map to TensorFlow's. Other
Inception networks are built of the same blocks of parallel branches.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from boxwright.nn.batch_norm import make_norm
from boxwright.nn.layers import (
    ConvSettings,
    KernelSize,
    MaxPool2d,
    Padding,
    conv_norm_act,
    make_activation,
    make_conv,
    separable_conv,
)
from boxwright.nn.network import Backbone


@dataclass(frozen=True)
class Conv:
    """A convolution with normalization and activation.

    Attributes:
        kernel: The side of a square kernel, or (height, width).
        deviation: Of the truncated normal that initializes the kernel; 0 for the settings' initializer.
    """

    name: str
    kernel: KernelSize
    channels: int
    stride: int = 1
    padding: Padding = "same"
    deviation: float = 0.0
    dilation: int = 1


@dataclass(frozen=True)
class Separable:
    """A separable convolution with normalization and activation after both halves."""

    name: str
    kernel: int
    channels: int
    stride: int
    deviation: float


@dataclass(frozen=True)
class Pool:
    """A 3×3 pool; an average excludes padding."""

    kind: str
    stride: int = 1
    padding: Padding = "same"


@dataclass(frozen=True)
class Fork:
    """Convolutions of the same input, concatenated along channels."""

    convs: tuple[Conv, ...]


Layer = Conv | Separable | Pool | Fork


@dataclass(frozen=True)
class Block:
    """Branches of the same input, concatenated along channels."""

    name: str
    branches: tuple[tuple[Layer, ...], ...]


@dataclass(frozen=True)
class Residual:
    """A block whose output, projected to the input's channels and scaled, is added to the input."""

    name: str
    branches: tuple[tuple[Layer, ...], ...]
    scale: float
    activated: bool = True


@dataclass(frozen=True)
class InceptionLayout:
    """A network's layers in order, and its scope in TF-Slim."""

    scope: str
    layers: tuple[Layer | Block | Residual, ...]


class Concatenated(nn.Module):
    """Modules of the same input, their outputs concatenated along channels."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        """Keep the modules."""
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, sum of C, H', W']."""
        return torch.cat([module(inputs) for module in self.children()], dim=1)


class ScaledResidual(nn.Module):
    """Branches, a 1×1 convolution with a bias, and the sum with the input."""

    def __init__(self, branches: Concatenated, width: int, channels: int, block: Residual, settings: ConvSettings):
        """Build the block."""
        super().__init__()
        self.branches = [name for name, _ in branches.named_children()]
        for name, branch in branches.named_children():
            self.add_module(name, branch)
        self.Conv2d_1x1 = make_conv(width, channels, 1, settings.kernel, bias=True)
        self.scale = block.scale
        self.activation = make_activation(settings.activation if block.activated else "NONE")

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the same shape."""
        branches = torch.cat([self.get_submodule(name)(inputs) for name in self.branches], dim=1)
        outputs: Tensor = self.activation(inputs + self.scale * self.Conv2d_1x1(branches))
        return outputs


class Inception(Backbone):
    """A sequence of layers and blocks."""

    def __init__(
        self,
        layout: InceptionLayout,
        settings: ConvSettings,
        *,
        taps: Sequence[str],
        depth_multiplier: float = 1.0,
        min_depth: int = 16,
        in_channels: int = 3,
    ) -> None:
        """Build the network up to the last tap.

        Args:
            taps: Names of the layers or blocks whose outputs are returned, finest first.
        """
        super().__init__()
        self.slim_scope, self.taps = layout.scope, tuple(taps)
        made = _LayerBuilder(settings, lambda channels: max(int(channels * depth_multiplier), min_depth))
        widths: dict[str, int] = {}
        channels = in_channels
        for number, item in enumerate(layout.layers):
            # What has no weights has no scope in TF-Slim.
            name = str(number) if isinstance(item, Pool | Fork) else item.name
            module, channels = made.item(item, channels)
            self.add_module(name, module)
            widths[name] = channels
            if name == self.taps[-1]:
                break
        self.channels = tuple(widths[tap] for tap in self.taps)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return one map per tap, finest first."""
        features, outputs = inputs, []
        for name, module in self.named_children():
            features = module(features)
            if name in self.taps:
                outputs.append(features)
        return outputs


@dataclass(frozen=True)
class _LayerBuilder:
    """Makes modules from descriptions, each with its output channels."""

    settings: ConvSettings
    depth: Callable[[int], int]

    def item(self, item: Layer | Block | Residual, channels: int) -> tuple[nn.Module, int]:
        if isinstance(item, Block):
            return self.block(item, channels)
        if isinstance(item, Residual):
            branches, width = self.block(Block(item.name, item.branches), channels)
            return ScaledResidual(branches, width, channels, item, self.settings), channels
        return self.layer(item, channels)

    def block(self, block: Block, channels: int) -> tuple[Concatenated, int]:
        branches: dict[str, nn.Module] = {}
        out = 0
        for number, layers in enumerate(block.branches):
            branch, width = nn.Sequential(), channels
            for position, layer in enumerate(layers):
                module, width = self.layer(layer, width)
                branch.add_module(str(position) if isinstance(layer, Pool | Fork) else layer.name, module)
            branches[f"Branch_{number}"] = branch
            out += width
        return Concatenated(branches), out

    def layer(self, layer: Layer, channels: int) -> tuple[nn.Module, int]:
        if isinstance(layer, Pool):
            return _pool(layer), channels
        if isinstance(layer, Fork):
            made = [self.layer(conv, channels) for conv in layer.convs]
            names = [conv.name for conv in layer.convs]
            modules = dict(zip(names, (module for module, _ in made), strict=True))
            return Concatenated(modules), sum(width for _, width in made)
        out = self.depth(layer.channels)
        if isinstance(layer, Separable):
            return self._separable(layer, channels, out), out
        settings = self.settings
        if layer.deviation:
            settings = replace(settings, kernel=replace(settings.kernel, initialize=_normal(layer.deviation)))
        unit = conv_norm_act(
            channels,
            out,
            layer.kernel,
            settings,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
        )
        return unit, out

    def _separable(self, layer: Separable, channels: int, out: int) -> nn.Module:
        rule = replace(self.settings.kernel, initialize=_normal(layer.deviation))
        settings = replace(self.settings, separable_depthwise=rule, separable_pointwise=rule)
        # TF-Slim's rule for Inception v2's first layer, for any number of image channels.
        multiplier = min(int(out / 3), 8)
        conv = separable_conv(
            channels, out, layer.kernel, settings, stride=layer.stride, multiplier=multiplier, bias=settings.bias
        )
        return nn.Sequential(conv, make_norm(out, settings.norm), make_activation(settings.activation))


def _pool(pool: Pool) -> nn.Module:
    if pool.kind == "average":
        # TF divides by the pixels that lie within the map; PyTorch's default counts the padding too.
        return nn.AvgPool2d(3, stride=pool.stride, padding=1, count_include_pad=False)
    return MaxPool2d(3, pool.stride) if pool.padding == "same" else nn.MaxPool2d(3, pool.stride)


def _normal(deviation: float) -> Callable[[Tensor], object]:
    # TF cuts at two deviations, PyTorch's default at the values -2 and 2.
    return lambda kernel: nn.init.trunc_normal_(kernel, 0.0, deviation, -2 * deviation, 2 * deviation)


# Standard deviations of kernels before a 3×3, and of projections.
_REDUCE, _PROJECT = 0.09, 0.1


def _block(
    name: str,
    plain: int,
    single: tuple[int, int],
    double: tuple[int, int],
    projected: int,
    pool: str = "average",
) -> Block:
    """Return a block that keeps the size: a 1×1, a 3×3, two 3×3, and a pool."""
    return Block(
        name,
        (
            (Conv("Conv2d_0a_1x1", 1, plain),),
            (Conv("Conv2d_0a_1x1", 1, single[0], deviation=_REDUCE), Conv("Conv2d_0b_3x3", 3, single[1])),
            (
                Conv("Conv2d_0a_1x1", 1, double[0], deviation=_REDUCE),
                Conv("Conv2d_0b_3x3", 3, double[1]),
                Conv("Conv2d_0c_3x3", 3, double[1]),
            ),
            (Pool(pool), Conv("Conv2d_0b_1x1", 1, projected, deviation=_PROJECT)),
        ),
    )


def _halving(name: str, single: tuple[int, int], double: tuple[int, int]) -> Block:
    """Return a block that halves the size."""
    return Block(
        name,
        (
            (Conv("Conv2d_0a_1x1", 1, single[0], deviation=_REDUCE), Conv("Conv2d_1a_3x3", 3, single[1], stride=2)),
            (
                Conv("Conv2d_0a_1x1", 1, double[0], deviation=_REDUCE),
                Conv("Conv2d_0b_3x3", 3, double[1]),
                Conv("Conv2d_1a_3x3", 3, double[1], stride=2),
            ),
            (Pool("max", stride=2),),
        ),
    )


INCEPTION_V2 = InceptionLayout(
    "InceptionV2",
    (
        # Separable as in the paper's appendix; TF-Slim gives this kernel alone a deviation of 1.
        Separable("Conv2d_1a_7x7", 7, 64, stride=2, deviation=1.0),
        Pool("max", stride=2),
        Conv("Conv2d_2b_1x1", 1, 64, deviation=_PROJECT),
        Conv("Conv2d_2c_3x3", 3, 192),
        Pool("max", stride=2),
        _block("Mixed_3b", 64, (64, 64), (64, 96), 32),
        _block("Mixed_3c", 64, (64, 96), (64, 96), 64),
        _halving("Mixed_4a", (128, 160), (64, 96)),
        _block("Mixed_4b", 224, (64, 96), (96, 128), 128),
        _block("Mixed_4c", 192, (96, 128), (96, 128), 128),
        _block("Mixed_4d", 160, (128, 160), (128, 160), 96),
        _block("Mixed_4e", 96, (128, 192), (160, 192), 96),
        _halving("Mixed_5a", (128, 192), (192, 256)),
        _block("Mixed_5b", 352, (192, 320), (160, 224), 128),
        _block("Mixed_5c", 352, (192, 320), (192, 224), 128, pool="max"),
    ),
)


_ROW, _COLUMN = (1, 7), (7, 1)


def _block_35(name: str, projected: int, five: tuple[str, str] = ("Conv2d_0a_1x1", "Conv2d_0b_5x5")) -> Block:
    """Return a block on the 35×35 grid."""
    return Block(
        name,
        (
            (Conv("Conv2d_0a_1x1", 1, 64),),
            (Conv(five[0], 1, 48), Conv(five[1], 5, 64)),
            (Conv("Conv2d_0a_1x1", 1, 64), Conv("Conv2d_0b_3x3", 3, 96), Conv("Conv2d_0c_3x3", 3, 96)),
            (Pool("average"), Conv("Conv2d_0b_1x1", 1, projected)),
        ),
    )


def _block_17(name: str, between: int) -> Block:
    """Return a block on the 17×17 grid."""
    return Block(
        name,
        (
            (Conv("Conv2d_0a_1x1", 1, 192),),
            (
                Conv("Conv2d_0a_1x1", 1, between),
                Conv("Conv2d_0b_1x7", _ROW, between),
                Conv("Conv2d_0c_7x1", _COLUMN, 192),
            ),
            (
                Conv("Conv2d_0a_1x1", 1, between),
                Conv("Conv2d_0b_7x1", _COLUMN, between),
                Conv("Conv2d_0c_1x7", _ROW, between),
                Conv("Conv2d_0d_7x1", _COLUMN, between),
                Conv("Conv2d_0e_1x7", _ROW, 192),
            ),
            (Pool("average"), Conv("Conv2d_0b_1x1", 1, 192)),
        ),
    )


def _block_8(name: str, column: str) -> Block:
    """Return a block on the 8×8 grid."""
    return Block(
        name,
        (
            (Conv("Conv2d_0a_1x1", 1, 320),),
            (
                Conv("Conv2d_0a_1x1", 1, 384),
                Fork((Conv("Conv2d_0b_1x3", (1, 3), 384), Conv(column, (3, 1), 384))),
            ),
            (
                Conv("Conv2d_0a_1x1", 1, 448),
                Conv("Conv2d_0b_3x3", 3, 384),
                Fork((Conv("Conv2d_0c_1x3", (1, 3), 384), Conv("Conv2d_0d_3x1", (3, 1), 384))),
            ),
            (Pool("average"), Conv("Conv2d_0b_1x1", 1, 192)),
        ),
    )


INCEPTION_V3 = InceptionLayout(
    "InceptionV3",
    (
        Conv("Conv2d_1a_3x3", 3, 32, stride=2, padding="valid"),
        Conv("Conv2d_2a_3x3", 3, 32, padding="valid"),
        Conv("Conv2d_2b_3x3", 3, 64),
        Pool("max", stride=2, padding="valid"),
        Conv("Conv2d_3b_1x1", 1, 80),
        Conv("Conv2d_4a_3x3", 3, 192, padding="valid"),
        Pool("max", stride=2, padding="valid"),
        _block_35("Mixed_5b", 32),
        # TF-Slim's spelling, different from that of its neighbors; checkpoints have it.
        _block_35("Mixed_5c", 64, ("Conv2d_0b_1x1", "Conv_1_0c_5x5")),
        _block_35("Mixed_5d", 64),
        Block(
            "Mixed_6a",
            (
                # A 3×3 kernel under a scope that says 1×1, as in TF-Slim.
                (Conv("Conv2d_1a_1x1", 3, 384, stride=2, padding="valid"),),
                (
                    Conv("Conv2d_0a_1x1", 1, 64),
                    Conv("Conv2d_0b_3x3", 3, 96),
                    Conv("Conv2d_1a_1x1", 3, 96, stride=2, padding="valid"),
                ),
                (Pool("max", stride=2, padding="valid"),),
            ),
        ),
        _block_17("Mixed_6b", 128),
        _block_17("Mixed_6c", 160),
        _block_17("Mixed_6d", 160),
        _block_17("Mixed_6e", 192),
        Block(
            "Mixed_7a",
            (
                (Conv("Conv2d_0a_1x1", 1, 192), Conv("Conv2d_1a_3x3", 3, 320, stride=2, padding="valid")),
                (
                    Conv("Conv2d_0a_1x1", 1, 192),
                    Conv("Conv2d_0b_1x7", _ROW, 192),
                    Conv("Conv2d_0c_7x1", _COLUMN, 192),
                    Conv("Conv2d_1a_3x3", 3, 192, stride=2, padding="valid"),
                ),
                (Pool("max", stride=2, padding="valid"),),
            ),
        ),
        _block_8("Mixed_7b", "Conv2d_0b_3x1"),
        _block_8("Mixed_7c", "Conv2d_0c_3x1"),
    ),
)
