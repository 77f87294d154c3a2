"""Layers that a CPU computes faster in another way, to the last digits of float32.

Plain layers (`layers.py`) know nothing of it: `accelerate_for_cpu` exchanges those of a network that may gain. Whether
one does depends on what it is given. On other devices, in graphs that are compiled or exported, under autocast and for
inputs that are too small an exchanged layer computes as the plain one.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from boxwright.models.batch_norm import BatchNorm2d
from boxwright.models.expansion import expand_normalized, gains_from_covariance, is_expansion
from boxwright.models.layers import Conv2d, ConvNormAct
from boxwright.models.winograd import gains_from_winograd, is_wide_3x3
from boxwright.ops.winograd import conv_3x3


def accelerate_for_cpu(network: nn.Module) -> None:
    """Exchange the layers that may gain; their weights, names and hooks stay, and they can be trained."""
    for module in network.modules():
        # By class, as a wrapper would change the names of weights, and a method set on an object is lost in copies.
        if type(module) is Conv2d and is_wide_3x3(module):
            module.__class__ = WinogradOrDirectConv2d
        elif type(module) is ConvNormAct and is_expansion(*module[:2]):
            module.__class__ = ExpansionNormAct


class WinogradOrDirectConv2d(Conv2d):
    """A wide convolution of 3×3, with a quarter of the multiplications where that is faster."""

    def forward(self, input: Tensor) -> Tensor:
        """Return [B, C', H, W]."""
        if gains_from_winograd(self, input):
            return conv_3x3(input, self.weight, self.bias)
        return super().forward(input)


class ExpansionNormAct(ConvNormAct):
    """A 1×1 convolution to many channels, normalized in training by what is known of the few channels in."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what the last layer gives."""
        conv, norm, activation = self
        if gains_from_covariance(conv, norm, input):
            output = expand_normalized(input, cast(Conv2d, conv), cast(BatchNorm2d, norm))
        else:
            output = norm(conv(input))
        return cast(Tensor, activation(output))
