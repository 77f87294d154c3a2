"""Layers with faster algorithms on a CPU, equal up to float32 rounding.

`accelerate_for_cpu` replaces the plain layers (`layers.py`) of a network that may gain. A replaced layer still computes
as the plain one on other devices, in compiled or exported graphs, under autocast and for small inputs.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from boxwright.models.batch_norm import BatchNorm2d
from boxwright.models.compiled_norm import gains_from_kernel, is_kernels, normalize_and_activate
from boxwright.models.expansion import expand_normalized, gains_from_covariance, is_expansion
from boxwright.models.layers import Conv2d, ConvNormAct
from boxwright.models.winograd import gains_from_winograd, is_wide_3x3
from boxwright.ops.winograd import conv_3x3


def accelerate_for_cpu(network: nn.Module) -> None:
    """Replace the layers that may gain; weights, names and hooks stay, and the network remains trainable."""
    for module in network.modules():
        # By class: a wrapper would rename weights, and a method set on an object is lost in copies.
        if type(module) is Conv2d and is_wide_3x3(module):
            module.__class__ = WinogradOrDirectConv2d
        elif type(module) is ConvNormAct and is_expansion(*module[:2]):
            module.__class__ = ExpansionNormAct
        elif type(module) is ConvNormAct and is_kernels(*module[1:]):
            module.__class__ = CompiledNormAct


def use_plain_norms(network: nn.Module) -> None:
    """Let PyTorch's operators normalize and activate in place of the compiled kernel."""
    for module in network.modules():
        if _is_compiled(module):
            module.__class__ = ConvNormAct


def uses_compiled_norms(network: nn.Module) -> bool:
    """Return whether the compiled kernel normalizes in training."""
    on_cpu = next(network.parameters()).device.type == "cpu"
    return on_cpu and any(_is_compiled(module) for module in network.modules())


def _is_compiled(module: nn.Module) -> bool:
    return type(module) is CompiledNormAct


class WinogradOrDirectConv2d(Conv2d):
    """A wide convolution of 3×3, with a quarter of the multiplications where that is faster."""

    def forward(self, input: Tensor) -> Tensor:
        """Return [B, C', H, W]."""
        if gains_from_winograd(self, input):
            return conv_3x3(input, self.weight, self.bias)
        return super().forward(input)


class ExpansionNormAct(ConvNormAct):
    """A 1×1 convolution to many channels, whose batch statistics are computed from the few input channels."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the last layer's output."""
        conv, norm, activation = self
        if gains_from_covariance(conv, norm, input):
            output = expand_normalized(input, cast(Conv2d, conv), cast(BatchNorm2d, norm))
        else:
            output = norm(conv(input))
        return cast(Tensor, activation(output))


class CompiledNormAct(ConvNormAct):
    """A convolution, and its normalization and activation in one pass over the map where a C compiler is found."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the last layer's output."""
        conv, norm, activation = self
        output = conv(input)
        if gains_from_kernel(norm, activation, output):
            return normalize_and_activate(output, cast(BatchNorm2d, norm), activation)
        return cast(Tensor, activation(norm(output)))
