"""A 1×1 convolution to many channels and its batch normalization, at little more than the convolution's cost.

Each output channel is a weighted sum of the few input channels, so its statistics follow from their means and
covariances. The large map is neither read for its statistics nor kept before and after normalization, and its gradients
are passed back once. Results are equal up to float32 rounding.

Dimensions: B batch, C input channels, D output channels, H W grid.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.batch_norm import BatchNorm2d, is_plain_on_cpu
from boxwright.nn.layers import have_hooks
from boxwright.nn.ops.channel_sums import channel_sums

# The ratio of output to input channels from which this was at least as fast (`benchmarks/layers.py`).
_LEAST_EXPANSION = 4
_MOST_CHANNELS_IN = 32


def is_expansion(conv: nn.Module, norm: nn.Module) -> bool:
    """Return whether two layers may gain, regardless of their inputs."""
    return (
        isinstance(conv, nn.Conv2d)
        and type(norm) is BatchNorm2d
        and conv.kernel_size == conv.stride == (1, 1)
        and conv.groups == 1
        and conv.bias is None
        and conv.in_channels <= _MOST_CHANNELS_IN
        and conv.out_channels >= _LEAST_EXPANSION * conv.in_channels
    )


def gains_from_covariance(conv: nn.Module, norm: nn.Module, inputs: Tensor) -> bool:
    """Return whether `expand_normalized` supports these inputs and is faster; layers with hooks run one by one."""
    return (
        not torch.compiler.is_compiling()  # a compiler fuses normalization with its neighbors
        and is_plain_on_cpu(norm, inputs)
        and inputs.numel() > inputs.shape[1]  # more than one value per channel
        and not have_hooks(conv, norm)
    )


def expand_normalized(inputs: Tensor, conv: nn.Conv2d, norm: BatchNorm2d) -> Tensor:
    """Convolve and normalize as in training, updating the moving averages.

    Args:
        inputs: float32 [B, C, H, W], channels last.
        conv: 1×1, stride 1, without a bias.

    Returns:
        float32 [B, D, H, W], channels last.
    """
    rows = inputs.permute(0, 2, 3, 1).flatten(0, 2)  # [BHW, C], a view
    count = len(rows)
    mean_in = channel_sums(inputs) / count
    # Centered first: the mean of squares minus the squared mean loses digits where the mean is large.
    centered = rows - mean_in
    covariance = centered.t() @ (centered / count)
    kernel = conv.weight.flatten(1)
    mean = kernel @ mean_in
    variance = ((kernel @ covariance) * kernel).sum(1)
    norm.move_averages_of(mean, variance, count)
    gain = norm.weight * torch.rsqrt(variance + norm.eps)
    weight = (kernel * gain[:, None])[:, :, None, None]
    output: Tensor = _Pointwise.apply(inputs, weight, norm.bias - mean * gain)
    return output


class _Pointwise(torch.autograd.Function):
    """A 1×1 convolution with a bias, whose gradient is summed as a matrix product: oneDNN's own sum is slow."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        context.save_for_backward(inputs, weight)
        return F.conv2d(inputs, weight, bias)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = context.saved_tensors
        wanted = context.needs_input_grad
        to_inputs, to_weight, _ = torch.ops.aten.convolution_backward(
            gradient, inputs, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, (wanted[0], wanted[1], False)
        )
        return to_inputs, to_weight, channel_sums(gradient) if wanted[2] else None
