"""Which normalizations and activations the compiled kernel of `ops/norm_act.py` computes, and how a layer does so."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from boxwright.base.c_compiler import CompilerError
from boxwright.nn.activations import ReLU6
from boxwright.nn.batch_norm import BatchNorm2d, is_plain_on_cpu
from boxwright.nn.layers import ConvNormAct, have_hooks
from boxwright.nn.ops.norm_act import Pointwise, kernels, norm_act, norm_act_affine, norm_add_act

# Of values: below, calling the kernel costs more than it saves (`benchmarks/layers.py`).
LEAST_VALUES = 1 << 18
# Sums of a part's channels are on the stack.
_MOST_CHANNELS = 8192
_KINDS: dict[type[nn.Module], Pointwise] = {
    nn.Identity: Pointwise(),
    nn.ReLU: Pointwise(low=0.0),
    ReLU6: Pointwise(low=0.0, high=6.0),
    nn.SiLU: Pointwise(swish=True),
}


def is_kernels(norm: nn.Module, activation: nn.Module) -> bool:
    """Return whether the kernel computes two layers, regardless of their inputs."""
    return type(norm) is BatchNorm2d and type(activation) in _KINDS and norm.num_features <= _MOST_CHANNELS


def is_added(layers: ConvNormAct, activation: nn.Module) -> bool:
    """Return whether the kernel computes layers' normalization, the sum with a shortcut, and the activation of that."""
    _, norm, inner = layers
    return type(inner) is nn.Identity and is_kernels(norm, activation) and not kernel_of(activation).swish


def kernel_of(activation: nn.Module) -> Pointwise:
    """Return an activation as the kernels compute it."""
    return _KINDS[type(activation)]


def gains_from_kernel(norm: nn.Module, activation: nn.Module, inputs: Tensor) -> bool:
    """Return whether `normalize_and_activate` supports these inputs and is faster; layers with hooks run one by one."""
    return (
        not torch.compiler.is_compiling()  # first: a graph of any batch size would be bound by the comparison below
        and inputs.requires_grad
        and inputs.numel() >= LEAST_VALUES
        and is_plain_on_cpu(norm, inputs)
        and norm.momentum is not None
        and not have_hooks(norm, activation)
        and not isinstance(kernels(), CompilerError)
    )


def normalize_and_activate(inputs: Tensor, norm: BatchNorm2d, activation: nn.Module) -> Tensor:
    """Normalize and activate as in training, updating the moving averages.

    Args:
        inputs: float32 [B, C, H, W], channels last.

    Returns:
        float32 [B, C, H, W], channels last.
    """
    outputs, mean, variance = norm_act(inputs, norm.weight, norm.bias, norm.eps, kernel_of(activation))
    norm.move_averages_of(mean, variance, inputs.numel() // inputs.shape[1])
    return outputs


def normalize_add_and_activate(inputs: Tensor, norm: BatchNorm2d, other: Tensor, activation: nn.Module) -> Tensor:
    """Normalize as in training, updating the moving averages, add another map, and activate.

    Args:
        inputs: float32 [B, C, H, W], channels last.
        other: The same.

    Returns:
        float32 [B, C, H, W], channels last.
    """
    outputs, mean, variance = norm_add_act(inputs, norm.weight, norm.bias, norm.eps, other, kernel_of(activation))
    norm.move_averages_of(mean, variance, inputs.numel() // inputs.shape[1])
    return outputs


def normalize_activate_and_scale(inputs: Tensor, norm: BatchNorm2d, gain: Tensor, shift: Tensor) -> Tensor:
    """Normalize as in training, updating the moving averages, apply a ReLU, then scale and shift all values alike.

    Args:
        inputs: float32 [B, C, H, W], channels last.
        gain: [1]; so is the shift.

    Returns:
        float32 [B, C, H, W], channels last.
    """
    relu = Pointwise(low=0.0)
    outputs, mean, variance = norm_act_affine(inputs, norm.weight, norm.bias, norm.eps, gain, shift, relu)
    norm.move_averages_of(mean, variance, inputs.numel() // inputs.shape[1])
    return outputs
