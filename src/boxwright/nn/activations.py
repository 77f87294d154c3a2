"""Activations by TensorFlow's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Activation = str


class _ClampInPlace(torch.autograd.Function):
    """Clamp to 0..6 in place, saving only the output for backward; PyTorch's in-place version also copies the input."""

    @staticmethod
    def forward(context: Any, inputs: Tensor) -> Tensor:
        outputs = inputs.clamp_(0, 6)
        context.mark_dirty(outputs)
        context.save_for_backward(outputs)
        return outputs

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (outputs,) = context.saved_tensors
        passed: Tensor = torch.ops.aten.hardtanh_backward(gradient, outputs, 0.0, 6.0)
        return passed


class ReLU6(nn.Module):
    """min(max(x, 0), 6), in place."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input, clamped in place."""
        # Without gradients nothing is saved, and PyTorch's own in-place operation copies nothing either.
        if input.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            clamped: Tensor = _ClampInPlace.apply(input)
            return clamped
        return F.relu6(input, inplace=True)  # a compiler fuses it into the preceding operation


_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "NONE": nn.Identity,
    "RELU": lambda: nn.ReLU(inplace=True),
    "RELU_6": ReLU6,
    "SWISH": lambda: nn.SiLU(inplace=True),
    "HARD_SWISH": lambda: nn.Hardswish(inplace=True),
}


def make_activation(name: Activation) -> nn.Module:
    """Return the activation of TF's name NONE, RELU, RELU_6 or SWISH, or HARD_SWISH."""
    return _ACTIVATIONS[name]()
