"""Convolutions that add a shortcut and activate while they write their map, for inference on a CPU.

oneDNN, which computes PyTorch's convolutions there, calls these post-operations. The numbers are those of one layer
after another, up to float32 rounding, but the map is not read again. Depthwise convolutions are computed by a kernel in
C, which needs no padded copy of a map.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn

from boxwright.base.c_compiler import CompilerError
from boxwright.nn.backbones.mobilenet_v2 import InvertedResidual
from boxwright.nn.backbones.resnet_v1 import Bottleneck
from boxwright.nn.batch_norm import BatchNorm2d, StoredNorm2d
from boxwright.nn.compiled_depthwise import is_depthwise, window_of
from boxwright.nn.compiled_norm import kernel_of
from boxwright.nn.heads.weight_shared import Tower, WeightSharedHead
from boxwright.nn.layers import Conv2d, ConvNormAct, have_hooks
from boxwright.nn.onednn_convolution import (
    ACTIVATIONS,
    convolve,
    convolve_add_and_activate,
    convolve_and_activate,
    is_available,
    is_fast,
    is_readable_map,
)
from boxwright.nn.ops import add_act
from boxwright.nn.ops.depthwise import LEAST_CHANNELS, depthwise_act, kernels, taps_of
from boxwright.nn.winograd import WinogradConv2d

_NO_ACTIVATION = nn.Identity()


def fuse_convolutions(network: nn.Module) -> int:
    """Let convolutions whose normalization is folded add and activate, and return the number of changed modules.

    Weights, names and hooks stay. Elsewhere than on a CPU without gradients, layers still run one after another.

    Args:
        network: In evaluation mode, with normalization folded into convolutions.
    """
    count = 0
    if not is_available():
        return count
    for module in network.modules():
        # By class: a wrapper would rename weights, and a method set on an object is lost in copies.
        if isinstance(module, ConvNormAct) and _activates(module):
            module.__class__ = FusedConvAct
        elif type(module) is Conv2d and _gains_from_kernel(module):
            module.__class__ = DepthwiseConv2d
            cast(DepthwiseConv2d, module).lay_out()
        elif isinstance(module, Bottleneck) and _is_linear(module.expand) and type(module.activation) in ACTIVATIONS:
            module.__class__ = FusedBottleneck
        elif isinstance(module, InvertedResidual) and module.residual and _is_linear(module.project):
            module.__class__ = FusedInvertedResidual
        elif type(module) is Tower and _normalizes(module):
            module.__class__ = FusedTower
            module.norms = nn.ModuleList([StoredNorm2d(norm) for norm in module.norms if isinstance(norm, BatchNorm2d)])
        elif type(module) is WeightSharedHead and _is_winograd(module.boxes, module.classes):
            module.__class__ = FusedWeightSharedHead
        else:
            continue
        count += 1
    return count


def _activates(layers: ConvNormAct) -> bool:
    """Return whether layers are a convolution and an activation that it can compute."""
    conv, norm, activation = layers
    known = type(conv) in (Conv2d, DepthwiseConv2d, WinogradConv2d)
    return known and type(norm) is nn.Identity and type(activation) in ACTIVATIONS


def _normalizes(tower: Tower) -> bool:
    """Return whether all of a tower's convolutions can normalize and activate as they write."""
    return (
        _is_winograd(*tower.convs)
        and all(isinstance(norm, BatchNorm2d) for norm in tower.norms)
        and type(tower.activation) in ACTIVATIONS
    )


def _is_winograd(*sequences: nn.Module) -> bool:
    """Return whether each sequence is a single Winograd convolution."""
    return all([type(layer) for layer in cast(nn.Sequential, one)] == [WinogradConv2d] for one in sequences)


def _gains_from_kernel(conv: Conv2d) -> bool:
    wide = conv.out_channels >= LEAST_CHANNELS
    return wide and is_depthwise(conv) and not isinstance(kernels(), CompilerError)


def _is_linear(layers: ConvNormAct) -> bool:
    """Return whether layers are a convolution alone."""
    conv, *others = layers
    return type(conv) is Conv2d and all(type(one) is nn.Identity for one in others)


class DepthwiseConv2d(Conv2d):
    """A depthwise convolution whose weights are also laid out for the kernel in C."""

    taps: Tensor
    offset: Tensor

    def lay_out(self) -> None:
        """Make the kernel's weights from those of the convolution, which must not change any more."""
        bias = self.weight.new_zeros(self.out_channels) if self.bias is None else self.bias.detach()
        self.register_buffer("taps", taps_of(self.weight.detach()), persistent=False)
        self.register_buffer("offset", bias, persistent=False)

    def _load_from_state_dict(self, *given: Any) -> None:
        super()._load_from_state_dict(*given)
        self.lay_out()

    def forward(self, input: Tensor) -> Tensor:
        """Return [B, C, H', W']."""
        return self.activated(input, _NO_ACTIVATION)

    def activated(self, input: Tensor, activation: nn.Module) -> Tensor:
        """Return the activated map [B, C, H', W']."""
        if is_fast(self, input):
            window = window_of(self, input)
            return depthwise_act(input, self.taps, self.offset, kernel_of(activation), window)
        return cast(Tensor, activation(super().forward(input)))


class FusedConvAct(ConvNormAct):
    """A convolution and its activation in one pass."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activated map."""
        conv, _, activation = self
        if have_hooks(*self):
            return cast(Tensor, activation(conv(input)))
        if isinstance(conv, WinogradConv2d):
            return _winograd(conv, [input], [None], activation)[0]
        if isinstance(conv, DepthwiseConv2d):
            return conv.activated(input, activation)
        if isinstance(conv, Conv2d) and is_fast(conv, input):
            return convolve_and_activate(input, conv, activation)
        return cast(Tensor, activation(conv(input)))


class FusedBottleneck(Bottleneck):
    """ResNet's block, whose last convolution adds the shortcut and activates."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C', H', W']."""
        maps, shortcut = self.convolve(self.reduce(inputs)), self.shortcut(inputs)
        return _sum(maps, self.expand, shortcut, self.activation)


class FusedInvertedResidual(InvertedResidual):
    """MobileNetV2's block, whose last convolution adds the input."""

    def finish(self, inputs: Tensor, convolved: Tensor) -> Tensor:
        """Return the output of the depthwise convolution's features."""
        return _sum(convolved, self.project, inputs, _NO_ACTIVATION)


class FusedTower(Tower):
    """A shared tower whose convolutions normalize and activate, of all levels at once."""

    def layer(self, levels: list[Tensor], conv: nn.Module, norms: list[nn.Module]) -> list[Tensor]:
        """Return a layer's activated outputs [B, depth, H, W]."""
        layers = cast(nn.Sequential, conv)
        if have_hooks(layers, *layers, *norms, self.activation):
            return super().layer(levels, conv, norms)
        return _winograd(cast(WinogradConv2d, layers[0]), levels, cast(list[StoredNorm2d], norms), self.activation)


class FusedWeightSharedHead(WeightSharedHead):
    """A shared head whose last convolutions compute all levels at once."""

    def last(self, layers: nn.Sequential, levels: list[Tensor]) -> list[Tensor]:
        """Return the levels' outputs."""
        if have_hooks(layers, *layers):
            return super().last(layers, levels)
        return _winograd(cast(WinogradConv2d, layers[0]), levels, [None] * len(levels), _NO_ACTIVATION)


def _winograd(
    conv: WinogradConv2d, levels: Sequence[Tensor], norms: Sequence[StoredNorm2d | None], activation: nn.Module
) -> list[Tensor]:
    pointwise = kernel_of(activation)
    outputs = conv.of_levels(levels, norms, pointwise.low, pointwise.high)
    return [activation(output) for output in outputs] if pointwise.swish else outputs


def _sum(maps: Tensor, layers: ConvNormAct, shortcut: Tensor, activation: nn.Module) -> Tensor:
    conv = cast(Conv2d, layers[0])
    if is_fast(conv, maps) and is_readable_map(shortcut) and not have_hooks(layers, *layers, activation):
        if isinstance(add_act.kernels(), CompilerError):
            return convolve_add_and_activate(maps, conv, shortcut, activation)
        return add_act.add_act_(convolve(maps, conv), shortcut, kernel_of(activation))
    return cast(Tensor, activation(layers(maps) + shortcut))
