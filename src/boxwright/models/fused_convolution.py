"""Convolutions that add a shortcut and activate while they write their map, for inference on a CPU.

oneDNN, which computes PyTorch's convolutions there, calls these post-operations. The numbers are those of one layer
after another, but the map is not read again. PyTorch's own compiler calls the same operators.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from boxwright.models.activations import ReLU6
from boxwright.models.backbones.mobilenet_v2 import InvertedResidual
from boxwright.models.backbones.resnet_v1 import Bottleneck
from boxwright.models.layers import Conv2d, ConvNormAct
from boxwright.ops.compiled import is_readable

# PyTorch's names of what oneDNN computes to the same bits, and its bounds.
_POST_OPERATIONS: dict[type[nn.Module], tuple[str, list[float]]] = {
    nn.Identity: ("none", []),
    nn.ReLU: ("relu", []),
    ReLU6: ("hardtanh", [0.0, 6.0]),
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
        if isinstance(module, ConvNormAct) and _is_folded(module) and type(module[2]) is not nn.Identity:
            module.__class__ = FusedConvAct
        elif isinstance(module, Bottleneck) and _is_folded(module.expand, module.activation):
            module.__class__ = FusedBottleneck
        elif isinstance(module, InvertedResidual) and module.residual and _is_folded(module.project):
            module.__class__ = FusedInvertedResidual
        else:
            continue
        count += 1
    return count


def _is_folded(layers: nn.Module, added: nn.Module | None = None) -> bool:
    """Return whether layers are a convolution and an activation, or nothing but `added`, that oneDNN computes."""
    if not isinstance(layers, ConvNormAct):
        return False
    conv, norm, activation = layers
    last = activation if added is None else added
    linear = added is None or type(activation) is nn.Identity
    return type(conv) is Conv2d and type(norm) is nn.Identity and linear and type(last) in _POST_OPERATIONS


class FusedConvAct(ConvNormAct):
    """A convolution and its activation in one pass."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activated map."""
        conv, _, activation = self
        if isinstance(conv, Conv2d) and _is_fast(conv, input) and not _have_hooks(*self):
            return convolve_and_activate(input, conv, activation)
        activated: Tensor = activation(conv(input))
        return activated


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


def _sum(maps: Tensor, layers: nn.Module, shortcut: Tensor, activation: nn.Module) -> Tensor:
    conv = layers[0]
    if _is_fast(conv, maps) and _is_plain(shortcut) and not _have_hooks(layers, *layers, activation):
        return convolve_add_and_activate(maps, conv, shortcut, activation)
    outputs: Tensor = activation(layers(maps) + shortcut)
    return outputs


def convolve_and_activate(inputs: Tensor, conv: Conv2d, activation: nn.Module) -> Tensor:
    """Return an activated convolution of inputs [B, C, H, W], without gradients."""
    name, bounds = _POST_OPERATIONS[type(activation)]
    outputs: Tensor = torch.ops.mkldnn._convolution_pointwise(*_given(inputs, conv), name, bounds, "")
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
        and torch.backends.mkldnn.enabled
        and _is_plain(inputs)
        and is_readable(conv.weight)
        and conv.padding_mode == "zeros"
    )


def _is_plain(maps: Tensor) -> bool:
    """Return whether a map has numbers on the CPU, channels last in memory."""
    return is_readable(maps) and maps.numel() > 0 and maps.is_contiguous(memory_format=torch.channels_last)


def _have_hooks(*modules: nn.Module) -> bool:
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)
