"""A 1×1 convolution and the depthwise one after it, whose map between them is normalized, activated and read once.

That map is a mobile network's largest; the kernel is in `ops/depthwise.py`.

Dimensions: B batch, C channels, D expanded channels, H W grid, H' W' the output's.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from boxwright.base.c_compiler import CompilerError
from boxwright.nn.batch_norm import BatchNorm2d, is_plain_on_cpu
from boxwright.nn.compiled_norm import LEAST_VALUES, is_kernels, kernel_of
from boxwright.nn.expansion import expand_normalized, gains_from_covariance, is_expansion
from boxwright.nn.layers import Conv2d, ConvNormAct, have_hooks
from boxwright.nn.ops.depthwise import SIDES, STRIDES, Window, act_depthwise, kernels, norm_act_depthwise


def is_expanded_depthwise(expand: nn.Module, depthwise: nn.Module) -> bool:
    """Return whether the kernel computes two layers, regardless of their inputs."""
    if not (isinstance(expand, ConvNormAct) and isinstance(depthwise, ConvNormAct)):
        return False
    pointwise, norm, activation = expand
    conv = depthwise[0]
    return (
        is_kernels(norm, activation)
        and isinstance(pointwise, Conv2d)
        and pointwise.kernel_size == pointwise.stride == (1, 1)
        and isinstance(conv, Conv2d)
        and is_depthwise(conv)
        and conv.bias is None
    )


def is_depthwise(conv: Conv2d) -> bool:
    """Return whether the kernels know a convolution's window, of one channel each."""
    return (
        conv.groups == conv.in_channels == conv.out_channels
        and conv.kernel_size in [(side, side) for side in SIDES]
        and conv.stride[0] == conv.stride[1] in STRIDES
        and conv.dilation == (1, 1)
    )


def gains_from_depthwise(expand: ConvNormAct, depthwise: ConvNormAct, inputs: Tensor) -> bool:
    """Return whether `expand_and_convolve` supports these inputs and is faster; layers with hooks run one by one."""
    norm = cast(BatchNorm2d, expand[1])
    return (
        not torch.compiler.is_compiling()  # first: a graph of any batch size would be bound by the comparison below
        and torch.is_grad_enabled()
        and (inputs.requires_grad or cast(Conv2d, expand[0]).weight.requires_grad)
        and inputs.numel() // inputs.shape[1] * norm.num_features >= LEAST_VALUES
        and is_plain_on_cpu(norm, inputs)
        and norm.momentum is not None
        and not have_hooks(expand, *expand, depthwise[0])
        and not isinstance(kernels(), CompilerError)
    )


def expand_and_convolve(inputs: Tensor, expand: ConvNormAct, conv: Conv2d) -> Tensor:
    """Return the depthwise convolution of the expanded map, as in training, updating the moving averages.

    Args:
        inputs: float32 [B, C, H, W], channels last.
        conv: The depthwise convolution.

    Returns:
        float32 [B, D, H', W'], channels last.
    """
    pointwise, norm, activation = cast(Conv2d, expand[0]), cast(BatchNorm2d, expand[1]), kernel_of(expand[2])
    window = window_of(conv, inputs)
    if is_expansion(pointwise, norm) and gains_from_covariance(pointwise, norm, inputs):
        return act_depthwise(expand_normalized(inputs, pointwise, norm), activation, conv.weight, window)
    maps = pointwise(inputs)
    outputs, mean, variance = norm_act_depthwise(
        maps, norm.weight, norm.bias, norm.eps, activation, conv.weight, window
    )
    norm.move_averages_of(mean, variance, maps.numel() // maps.shape[1])
    return outputs


def window_of(conv: Conv2d, maps: Tensor) -> Window:
    """Return a convolution's window over maps [B, C, H, W]."""
    left, right, above, below = conv.sides(maps)
    side, stride = conv.kernel_size[0], conv.stride[0]
    height, width = maps.shape[2] + above + below, maps.shape[3] + left + right
    return Window(side, stride, above, left, (height - side) // stride + 1, (width - side) // stride + 1)
