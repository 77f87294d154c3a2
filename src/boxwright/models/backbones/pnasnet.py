"""PNASNet-5, large (Liu et al., 2018), as TF-Slim defines it, without the drop path of TensorFlow's training.

Modules are named by TF-Slim's scopes. A cell's inputs are the outputs of the previous two cells.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.models.backbones.backbone import Backbone
from boxwright.models.batch_norm import BatchNormSettings, make_norm
from boxwright.models.layers import ConvSettings, KernelRule, MaxPool2d, make_conv, separable_conv
from boxwright.models.regularization import Regularizer

_STEM = 96
# Scope → filters and stride, in order.
_CELLS = {
    "cell_stem_0": (54, 2),
    "cell_stem_1": (108, 2),
    **{f"cell_{number}": (216 * 2 ** (number // 4), 2 if number in (4, 8) else 1) for number in range(12)},
}
_TAPS = ("cell_7", "cell_11")
# Left and right operand of each combination: its state and operation. States 0 and 1 are the cell's inputs.
_COMBINATIONS = (
    ((1, "separable_5x5"), (1, "max_pool")),
    ((0, "separable_7x7"), (0, "max_pool")),
    ((0, "separable_5x5"), (0, "separable_3x3")),
    ((4, "separable_3x3"), (0, "max_pool")),
    ((1, "separable_3x3"), (0, "none")),
)


def _fan_out(kernel: Tensor) -> object:
    """Fill a kernel by its fan-out, which for a depthwise kernel is one channel's."""
    out = kernel.shape[0] if kernel.shape[0] > 1 else 1
    deviation = (1.3 * 2 / (out * kernel.shape[2] * kernel.shape[3])) ** 0.5
    return nn.init.trunc_normal_(kernel, 0.0, deviation, -2 * deviation, 2 * deviation)


# TF's PNASNet ignores the configuration's hyperparameters.
_RULE = KernelRule(_fan_out, Regularizer(l2=4e-5))
_NORM = BatchNormSettings(decay=0.9997, epsilon=0.001)
_SETTINGS = ConvSettings(kernel=_RULE, separable_depthwise=_RULE, separable_pointwise=_RULE, norm=_NORM)


class _Separable(nn.Module):
    """Twice: ReLU, separable convolution, normalization."""

    def __init__(self, in_channels: int, channels: int, kernel: int, stride: int) -> None:
        super().__init__()
        name = f"{kernel}x{kernel}"
        for number, (into, step) in enumerate(((in_channels, stride), (channels, 1)), start=1):
            self.add_module(
                f"separable_{name}_{number}", separable_conv(into, channels, kernel, _SETTINGS, stride=step)
            )
            self.add_module(f"bn_sep_{name}_{number}", make_norm(channels, _NORM))

    def forward(self, inputs: Tensor) -> Tensor:
        features = inputs
        for number, layer in enumerate(self.children()):
            features = layer(F.relu(features) if number % 2 == 0 else features)
        return features


class _Pool(nn.Module):
    """A 3×3 maximum, followed by a 1×1 convolution if channels differ."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.pool = MaxPool2d(3, stride)
        if in_channels != channels:
            self.add_module("1x1", make_conv(in_channels, channels, 1, _RULE))
            self.bn_1 = make_norm(channels, _NORM)

    def forward(self, inputs: Tensor) -> Tensor:
        features = inputs
        for layer in self.children():
            features = layer(features)
        return features


class _Shortcut(nn.Module):
    """The input; with a stride, ReLU and a 1×1 convolution."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        if stride > 1:
            self.add_module("1x1", make_conv(in_channels, channels, 1, _RULE, stride=stride))
            self.bn_1 = make_norm(channels, _NORM)

    def forward(self, inputs: Tensor) -> Tensor:
        layers = list(self.children())
        features = F.relu(inputs) if layers else inputs
        for layer in layers:
            features = layer(features)
        return features


class _FactorizedReduction(nn.Module):
    """Two 1×1 convolutions of stride 2, one of them shifted by a pixel, concatenated."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.path1_conv = make_conv(in_channels, channels // 2, 1, _RULE)
        self.path2_conv = make_conv(in_channels, channels - channels // 2, 1, _RULE)
        self.final_path_bn = make_norm(channels, _NORM)

    def forward(self, inputs: Tensor) -> Tensor:
        # Shifted, so that the second half sees the pixels that the first half's stride skips.
        moved = F.pad(inputs, (0, 1, 0, 1))[..., 1:, 1:]
        halves = [self.path1_conv(inputs[..., ::2, ::2]), self.path2_conv(moved[..., ::2, ::2])]
        outputs: Tensor = self.final_path_bn(torch.cat(halves, dim=1))
        return outputs


class _Cell(nn.Module):
    """Five sums of two operands, concatenated along channels."""

    def __init__(self, before: int, current: int, filters: int, stride: int, *, halve: bool, raw: bool) -> None:
        """Build the cell.

        Args:
            before: Channels of the output before the last.
            halve: Whether the output before the last is twice as large as the last.
            raw: Whether there is no output before the last, which then serves as both.
        """
        super().__init__()
        self.raw = raw
        self.fit: list[str] = []
        if halve:
            reduction = _FactorizedReduction(before, filters)
            # TF-Slim keeps these layers directly in the cell.
            self.add_module("0", reduction)
            self.fit = ["0"]
        elif not raw and before != filters:
            self.prev_1x1, self.prev_bn = make_conv(before, filters, 1, _RULE), make_norm(filters, _NORM)
            self.fit = ["prev_1x1", "prev_bn"]
        self.add_module("1x1", make_conv(current, filters, 1, _RULE))
        self.beginning_bn = make_norm(filters, _NORM)
        widths = [filters, current if raw else filters]
        for number, sides in enumerate(_COMBINATIONS):
            combination = nn.Module()
            for side, (state, kind) in zip(("left", "right"), sides, strict=True):
                width = widths[state] if state < len(widths) else filters
                # Only a cell's inputs are shrunk; its later states have the small size already.
                combination.add_module(side, _operation(kind, width, filters, stride if state < 2 else 1))
            self.add_module(f"comb_iter_{number}", combination)

    def forward(self, before: Tensor, current: Tensor) -> Tensor:
        fitted = F.relu(before) if self.fit else before
        for name in self.fit:
            fitted = self.get_submodule(name)(fitted)
        states = [self.beginning_bn(self.get_submodule("1x1")(F.relu(current))), current if self.raw else fitted]
        for number, ((left, _), (right, _)) in enumerate(_COMBINATIONS):
            combination = self.get_submodule(f"comb_iter_{number}")
            pair = (combination.get_submodule("left")(states[left]), combination.get_submodule("right")(states[right]))
            states.append(pair[0] + pair[1])
        return torch.cat(states[2:], dim=1)


def _operation(kind: str, in_channels: int, channels: int, stride: int) -> nn.Module:
    if kind == "max_pool":
        return _Pool(in_channels, channels, stride)
    if kind == "none":
        return _Shortcut(in_channels, channels, stride)
    return _Separable(in_channels, channels, int(kind[-1]), stride)


class PnasNet(Backbone):
    """A stem and fourteen cells; returns the maps of strides 16 and 32."""

    def __init__(self, *, in_channels: int = 3) -> None:
        """Build the network."""
        super().__init__()
        self.conv0 = make_conv(in_channels, _STEM, 3, _RULE, stride=2, padding="valid")
        self.conv0_bn = make_norm(_STEM, _NORM)
        # 0 for no output: the first cell has the stem alone, which serves as both inputs.
        widths, strides = [0, _STEM], [1, 1]
        for name, (filters, stride) in _CELLS.items():
            raw = not widths[-2]
            cell = _Cell(widths[-2], widths[-1], filters, stride, halve=strides[-1] == 2, raw=raw)
            self.add_module(name, cell)
            widths.append(len(_COMBINATIONS) * filters)
            strides.append(stride)
        self.channels = tuple(len(_COMBINATIONS) * _CELLS[tap][0] for tap in _TAPS)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the maps of strides 16 and 32."""
        last = self.conv0_bn(self.conv0(inputs))
        before, outputs = last, []
        for name in _CELLS:
            output = cast(Tensor, self.get_submodule(name)(before, last))
            before, last = last, output
            if name in _TAPS:
                outputs.append(output)
        return outputs
