"""PNASNet-5, large (Liu et al., 2018), and the cells of five sums that it shares with NASNet, as TF-Slim defines them.

Modules are named by TF-Slim's scopes. A cell's inputs are the outputs of two cells before it.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.batch_norm import BatchNormSettings, NormSettings, make_norm
from boxwright.nn.drop_path import DropPath
from boxwright.nn.layers import (
    AvgPool2d,
    ConvSettings,
    KernelRule,
    MaxPool2d,
    Padding,
    make_activation,
    make_conv,
    separable_conv,
)
from boxwright.nn.network import Backbone
from boxwright.nn.regularization import Regularizer

_STEM = 96
# Steps until TF drops as many paths as it ever does.
_DROP_STEPS = 250_000


@dataclass(frozen=True)
class Recipe:
    """What a kind of cell computes.

    Attributes:
        combinations: Left and right operand of each sum: its state and operation. States 0 and 1 are the cell's inputs,
            the last output and the one before it; the others are the sums so far.
        outputs: The states that are concatenated.
    """

    combinations: tuple[tuple[tuple[int, str], tuple[int, str]], ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class CellPlan:
    """One cell.

    Attributes:
        name: Its scope in TF-Slim.
        passes_on: Whether the next cell gets this cell's earlier input too, in place of its later one.
    """

    name: str
    recipe: Recipe
    filters: int
    stride: int = 1
    passes_on: bool = False

    @property
    def channels(self) -> int:
        """The channels of its output."""
        return len(self.recipe.outputs) * self.filters


@dataclass(frozen=True)
class CellLayout:
    """A network's cells in order.

    Attributes:
        most_dropped: The share of the last cell's paths that is dropped at the end of training; earlier cells drop
            proportionally fewer.
    """

    cells: tuple[CellPlan, ...]
    most_dropped: float

    def position(self, name: str) -> int:
        """Return the index of a cell."""
        return [cell.name for cell in self.cells].index(name)

    def drop_path(self, name: str) -> DropPath:
        """Return the drop path of a cell."""
        return DropPath(self.most_dropped * (self.position(name) + 1) / len(self.cells), _DROP_STEPS)


@dataclass(frozen=True)
class CellSettings:
    """Settings of a network's layers.

    Attributes:
        conv: Of convolutions, which have no bias; their own normalization and activation are None and "NONE" unless
            a configuration overrides them.
        norm: Of the normalization between layers.
    """

    conv: ConvSettings
    norm: NormSettings


def _fan_out(kernel: Tensor) -> object:
    """Fill a kernel by its fan-out, which for a depthwise kernel is one channel's."""
    out = kernel.shape[0] if kernel.shape[0] > 1 else 1
    deviation = (1.3 * 2 / (out * kernel.shape[2] * kernel.shape[3])) ** 0.5
    return nn.init.trunc_normal_(kernel, 0.0, deviation, -2 * deviation, 2 * deviation)


def slim_settings(l2: float) -> CellSettings:
    """Return TF-Slim's settings, with a weight of the penalty on kernels."""
    rule, norm = KernelRule(_fan_out, Regularizer(l2=l2)), BatchNormSettings(decay=0.9997, epsilon=0.001)
    conv = ConvSettings(kernel=rule, separable_depthwise=rule, separable_pointwise=rule, norm=None, activation="NONE")
    return CellSettings(conv, norm)


def overridden_settings(conv: ConvSettings, own: CellSettings) -> CellSettings:
    """Return the settings of a configuration that overrides a network's own.

    As in TF, each convolution then has the configuration's normalization and activation, and the network's
    normalization follows it.
    """
    return CellSettings(conv, conv.norm or own.norm)


def _conv(
    in_channels: int, out: int, side: int, settings: CellSettings, *, stride: int = 1, padding: Padding = "same"
) -> nn.Module:
    conv = make_conv(in_channels, out, side, settings.conv.kernel, stride=stride, padding=padding)
    behind = _behind(out, settings)
    return nn.Sequential(conv, *behind) if behind else conv


def _separable(in_channels: int, out: int, side: int, settings: CellSettings, stride: int) -> nn.Sequential:
    pair = separable_conv(in_channels, out, side, settings.conv, stride=stride)
    return nn.Sequential(*pair, *_behind(out, settings))


def _behind(channels: int, settings: CellSettings) -> list[nn.Module]:
    """Return the normalization and activation of a convolution itself."""
    norm, activation = settings.conv.norm, settings.conv.activation
    layers = [] if norm is None else [make_norm(channels, norm)]
    return layers if activation == "NONE" else [*layers, make_activation(activation)]


class _SeparableTwice(nn.Module):
    """Twice: ReLU, separable convolution, normalization."""

    def __init__(self, in_channels: int, channels: int, kernel: int, stride: int, settings: CellSettings) -> None:
        super().__init__()
        name = f"{kernel}x{kernel}"
        for number, (into, step) in enumerate(((in_channels, stride), (channels, 1)), start=1):
            self.add_module(f"separable_{name}_{number}", _separable(into, channels, kernel, settings, step))
            self.add_module(f"bn_sep_{name}_{number}", make_norm(channels, settings.norm))

    def forward(self, inputs: Tensor) -> Tensor:
        features = inputs
        for number, layer in enumerate(self.children()):
            features = layer(F.relu(features) if number % 2 == 0 else features)
        return features


class _Pool(nn.Module):
    """A 3×3 pool, followed by a 1×1 convolution if channels differ."""

    def __init__(self, pool: nn.Module, in_channels: int, channels: int, settings: CellSettings) -> None:
        super().__init__()
        self.pool = pool
        if in_channels != channels:
            self.add_module("1x1", _conv(in_channels, channels, 1, settings))
            self.bn_1 = make_norm(channels, settings.norm)

    def forward(self, inputs: Tensor) -> Tensor:
        features = inputs
        for layer in self.children():
            features = layer(features)
        return features


class _Shortcut(nn.Module):
    """The input; with a stride or other channels, ReLU and a 1×1 convolution."""

    def __init__(self, in_channels: int, channels: int, stride: int, settings: CellSettings) -> None:
        super().__init__()
        if stride > 1 or in_channels != channels:
            self.add_module("1x1", _conv(in_channels, channels, 1, settings, stride=stride))
            self.bn_1 = make_norm(channels, settings.norm)

    def forward(self, inputs: Tensor) -> Tensor:
        layers = list(self.children())
        features = F.relu(inputs) if layers else inputs
        for layer in layers:
            features = layer(features)
        return features


class _FactorizedReduction(nn.Module):
    """Two 1×1 convolutions of stride 2, one of them shifted by a pixel, concatenated."""

    def __init__(self, in_channels: int, channels: int, settings: CellSettings) -> None:
        super().__init__()
        self.path1_conv = _conv(in_channels, channels // 2, 1, settings)
        self.path2_conv = _conv(in_channels, channels - channels // 2, 1, settings)
        self.final_path_bn = make_norm(channels, settings.norm)

    def forward(self, inputs: Tensor) -> Tensor:
        # Shifted, so that the second half sees the pixels that the first half's stride skips.
        moved = F.pad(inputs, (0, 1, 0, 1))[..., 1:, 1:]
        halves = [self.path1_conv(inputs[..., ::2, ::2]), self.path2_conv(moved[..., ::2, ::2])]
        outputs: Tensor = self.final_path_bn(torch.cat(halves, dim=1))
        return outputs


@dataclass(frozen=True)
class Source:
    """A cell's input: its channels, and by how many powers of two it is smaller than the first; 0 channels: none."""

    channels: int
    level: int = 0


class Cell(nn.Module):
    """Five sums of two operands, some of which are concatenated along channels."""

    def __init__(
        self, plan: CellPlan, before: Source, last: Source, settings: CellSettings, drop_path: DropPath
    ) -> None:
        """Build the cell.

        Args:
            before: The output before the last, or none: then the last serves as both.
        """
        super().__init__()
        filters, self.recipe, self.drop_path = plan.filters, plan.recipe, drop_path
        self.raw = not before.channels
        self.fit: list[str] = []
        if not self.raw and before.level != last.level:
            # TF-Slim keeps these layers directly in the cell.
            self.add_module("0", _FactorizedReduction(before.channels, filters, settings))
            self.fit = ["0"]
        elif not self.raw and before.channels != filters:
            self.prev_1x1 = _conv(before.channels, filters, 1, settings)
            self.prev_bn = make_norm(filters, settings.norm)
            self.fit = ["prev_1x1", "prev_bn"]
        self.add_module("1x1", _conv(last.channels, filters, 1, settings))
        self.beginning_bn = make_norm(filters, settings.norm)
        widths = [filters, last.channels if self.raw else filters]
        for number, sides in enumerate(plan.recipe.combinations):
            combination = nn.Module()
            for side, (state, kind) in zip(("left", "right"), sides, strict=True):
                width = widths[state] if state < len(widths) else filters
                # Only a cell's inputs are shrunk; its later states have the small size already.
                stride = plan.stride if state < len(widths) else 1
                combination.add_module(side, _operation(kind, width, filters, stride, settings))
            self.add_module(f"comb_iter_{number}", combination)

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        """Return [B, C, H', W'] from the outputs of two cells."""
        fitted = F.relu(before) if self.fit else before
        for name in self.fit:
            fitted = self.get_submodule(name)(fitted)
        states = [self.beginning_bn(self.get_submodule("1x1")(F.relu(last))), last if self.raw else fitted]
        for number, sides in enumerate(self.recipe.combinations):
            combination = self.get_submodule(f"comb_iter_{number}")
            operands = []
            for name, (state, kind) in zip(("left", "right"), sides, strict=True):
                operand = combination.get_submodule(name)(states[state])
                operands.append(operand if kind == "none" else self.drop_path(operand))
            states.append(operands[0] + operands[1])
        return torch.cat([states[state] for state in self.recipe.outputs], dim=1)


def _operation(kind: str, in_channels: int, channels: int, stride: int, settings: CellSettings) -> nn.Module:
    if kind == "none":
        return _Shortcut(in_channels, channels, stride, settings)
    if kind == "max_pool":
        return _Pool(MaxPool2d(3, stride), in_channels, channels, settings)
    if kind == "avg_pool":
        return _Pool(AvgPool2d(3, stride), in_channels, channels, settings)
    return _SeparableTwice(in_channels, channels, int(kind[-1]), stride, settings)


def _add_cells(
    owner: nn.Module,
    plans: Sequence[CellPlan],
    layout: CellLayout,
    sources: tuple[Source, Source],
    settings: CellSettings,
) -> None:
    """Add cells to a module, the first of which reads `sources`: the output before the last, and the last."""
    before, last = sources
    for plan in plans:
        owner.add_module(plan.name, Cell(plan, before, last, settings, layout.drop_path(plan.name)))
        output = Source(plan.channels, last.level + (plan.stride == 2))
        before, last = before if plan.passes_on else last, output


def _run_cells(
    owner: nn.Module, plans: Sequence[CellPlan], before: Tensor, last: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield the output of each cell, with its name."""
    for plan in plans:
        output = cast(Tensor, owner.get_submodule(plan.name)(before, last))
        yield plan.name, output
        before, last = before if plan.passes_on else last, output


class CellNetwork(Backbone):
    """A convolution and cells, up to the last tap."""

    def __init__(
        self, layout: CellLayout, settings: CellSettings, *, taps: tuple[str, ...], in_channels: int = 3
    ) -> None:
        """Build the network.

        Args:
            taps: Names of the cells whose outputs are returned, finest first.
        """
        super().__init__()
        self.taps, self.cells = taps, layout.cells[: layout.position(taps[-1]) + 1]
        self.conv0 = _conv(in_channels, _STEM, 3, settings, stride=2, padding="valid")
        self.conv0_bn = make_norm(_STEM, settings.norm)
        _add_cells(self, self.cells, layout, (Source(0), Source(_STEM)), settings)
        self.channels = tuple(layout.cells[layout.position(tap)].channels for tap in taps)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return one map per tap, finest first."""
        stem = self.conv0_bn(self.conv0(inputs))
        return [output for name, output in _run_cells(self, self.cells, stem, stem) if name in self.taps]


class JoinedCells(Backbone):
    """A network whose last two cells' outputs are one map, so that crops of it hold what later cells read."""

    def __init__(self, body: CellNetwork) -> None:
        """Wrap the network, which returns two maps of one size."""
        super().__init__()
        self.body = body
        self.channels = (sum(body.channels),)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the one map."""
        return [torch.cat(self.body(inputs), dim=1)]


class LaterCells(nn.Module):
    """The cells behind `JoinedCells`, applied to crops.

    Attributes:
        channels: Of the output.
    """

    def __init__(self, layout: CellLayout, settings: CellSettings, first: JoinedCells) -> None:
        """Build the cells that `first` lacks."""
        super().__init__()
        self.cells = layout.cells[len(first.body.cells) :]
        width = first.channels[0] // 2
        _add_cells(self, self.cells, layout, (Source(width), Source(width)), settings)
        self.channels = self.cells[-1].channels

    def forward(self, crops: Tensor) -> Tensor:
        """Return [N, C, h', w'] of crops [N, C, h, w]."""
        before, last = crops.chunk(2, dim=1)
        for _, output in _run_cells(self, self.cells, before, last):
            last = output
        return F.relu(last)


_CELL = Recipe(
    (
        ((1, "separable_5x5"), (1, "max_pool")),
        ((0, "separable_7x7"), (0, "max_pool")),
        ((0, "separable_5x5"), (0, "separable_3x3")),
        ((4, "separable_3x3"), (0, "max_pool")),
        ((1, "separable_3x3"), (0, "none")),
    ),
    outputs=(2, 3, 4, 5, 6),
)
PNASNET = CellLayout(
    (
        CellPlan("cell_stem_0", _CELL, 54, stride=2),
        CellPlan("cell_stem_1", _CELL, 108, stride=2),
        *(
            CellPlan(f"cell_{number}", _CELL, 216 * 2 ** (number // 4), stride=2 if number in (4, 8) else 1)
            for number in range(12)
        ),
    ),
    most_dropped=0.4,
)
PNASNET_SETTINGS = slim_settings(l2=4e-5)
