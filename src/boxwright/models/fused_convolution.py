"""Convolutions that add a shortcut and activate while they write their map, for inference on a CPU.

oneDNN, which computes PyTorch's convolutions there, calls these post-operations. The numbers are those of one layer
after another, up to float32 rounding, but the map is not read again. PyTorch's own compiler calls the same operators.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from boxwright.models.activations import ReLU6
from boxwright.models.backbones.mobilenet_v2 import InvertedResidual
from boxwright.models.backbones.resnet_v1 import Bottleneck
from boxwright.models.layers import Conv2d, ConvNormAct, have_hooks
from boxwright.models.winograd import WinogradConv2d
from boxwright.ops.compiled import is_readable

# Of the activations that oneDNN computes to the same bits as PyTorch; Swish it approximates.
_BOUNDS: dict[type[nn.Module], tuple[float, float]] = {
    nn.ReLU: (0.0, math.inf),
    ReLU6: (0.0, 6.0),
}


def fuse_convolutions(network: nn.Module) -> int:
    """Let convolutions whose normalization is folded add and activate, and return the number of changed modules.

    Weights, names and hooks stay. Elsewhere than on a CPU without gradients, layers still run one after another.

    Args:
        network: In evaluation mode, with normalization folded into convolutions.
    """
    count = 0
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_convolution_pointwise")):
        return count
    for module in network.modules():
        # By class: a wrapper would rename weights, and a method set on an object is lost in copies.
        if isinstance(module, ConvNormAct) and _activates(module):
            module.__class__ = FusedConvAct
        elif isinstance(module, Bottleneck) and _is_linear(module.expand) and type(module.activation) in _BOUNDS:
            module.__class__ = FusedBottleneck
        elif isinstance(module, InvertedResidual) and module.residual and _is_linear(module.project):
            module.__class__ = FusedInvertedResidual
        else:
            continue
        count += 1
    return count


def _activates(layers: ConvNormAct) -> bool:
    """Return whether layers are a convolution and an activation that it can compute."""
    conv, norm, activation = layers
    return type(conv) in (Conv2d, WinogradConv2d) and type(norm) is nn.Identity and type(activation) in _BOUNDS


def _is_linear(layers: ConvNormAct) -> bool:
    """Return whether layers are a convolution alone."""
    conv, *others = layers
    return type(conv) is Conv2d and all(type(one) is nn.Identity for one in others)


class FusedConvAct(ConvNormAct):
    """A convolution and its activation in one pass."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activated map."""
        conv, _, activation = self
        if have_hooks(*self):
            return cast(Tensor, activation(conv(input)))
        if isinstance(conv, WinogradConv2d):
            return conv.clamped(input, *_BOUNDS[type(activation)])
        if isinstance(conv, Conv2d) and _is_fast(conv, input):
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
        return _sum(convolved, self.project, inputs, nn.Identity())


def _sum(maps: Tensor, layers: ConvNormAct, shortcut: Tensor, activation: nn.Module) -> Tensor:
    conv = cast(Conv2d, layers[0])
    if _is_fast(conv, maps) and _is_plain(shortcut) and not have_hooks(layers, *layers, activation):
        return convolve_add_and_activate(maps, conv, shortcut, activation)
    return cast(Tensor, activation(layers(maps) + shortcut))


def convolve_and_activate(inputs: Tensor, conv: Conv2d, activation: nn.Module) -> Tensor:
    """Return an activated convolution of inputs [B, C, H, W], without gradients."""
    bounds = _BOUNDS[type(activation)]
    named = ("hardtanh", bounds) if bounds[1] < math.inf else ("relu", ())
    outputs: Tensor = torch.ops.mkldnn._convolution_pointwise(*_given(inputs, conv), *named, "")
    return outputs


def convolve_add_and_activate(inputs: Tensor, conv: Conv2d, other: Tensor, activation: nn.Module) -> Tensor:
    """Return the activated sum of a convolution of inputs [B, C, H, W] and another map, without gradients."""
    padded, *settings = _given(inputs, conv)
    # After a sum, PyTorch has no other activation.
    relu = type(activation) is nn.ReLU
    outputs: Tensor = torch.ops.mkldnn._convolution_pointwise.binary(
        padded, other, *settings, "add", 1.0, "relu" if relu else None, [], ""
    )
    return outputs if relu else cast(Tensor, activation(outputs))


def _given(inputs: Tensor, conv: Conv2d) -> tuple[object, ...]:
    padded = conv.padded(inputs)
    return padded, conv.weight, conv.bias, conv.padding, conv.stride, conv.dilation, conv.groups


def _is_fast(conv: Conv2d, inputs: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and cast("bool", torch.backends.mkldnn.enabled)
        and _is_plain(inputs)
        and is_readable(conv.weight)
        and conv.padding_mode == "zeros"
    )


def _is_plain(maps: Tensor) -> bool:
    """Return whether a map has numbers on the CPU, channels last in memory."""
    return is_readable(maps) and maps.numel() > 0 and maps.is_contiguous(memory_format=torch.channels_last)
