"""Squeeze and excite (Hu et al., 2018): each channel is weighted by a function of all channels' means."""

from __future__ import annotations

from torch import Tensor, nn

from boxwright.nn.activations import make_activation
from boxwright.nn.layers import KernelRule, make_conv


class SqueezeExcite(nn.Module):
    """Two 1×1 convolutions with biases on the mean of each channel, named as TF-Slim's."""

    def __init__(self, channels: int, squeezed: int, rule: KernelRule, activation: str, gate: nn.Module) -> None:
        """Make the layers; `gate` follows the second."""
        super().__init__()
        self.Conv = make_conv(channels, squeezed, 1, rule, bias=True)
        self.activation = make_activation(activation)
        self.Conv_1 = make_conv(squeezed, channels, 1, rule, bias=True)
        self.gate = gate

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the same shape."""
        gates: Tensor = self.gate(self.Conv_1(self.activation(self.Conv(inputs.mean((2, 3), keepdim=True)))))
        return inputs * gates
