"""A 1×1 convolution of a map whose channels are weighted image by image, as after squeeze and excite.

Weighting the kernel in place of the map saves, of the large map, a copy and three passes for the gradients. Results are
equal up to float32 rounding.

Dimensions: B batch, C channels, D output channels, H W grid.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from boxwright.nn.layers import Conv2d, ConvNormAct, have_hooks


def is_projection(layers: nn.Module) -> bool:
    """Return whether layers begin with a convolution that `project_gated` computes."""
    return (
        isinstance(layers, ConvNormAct)
        and isinstance(conv := layers[0], Conv2d)
        and conv.kernel_size == conv.stride == (1, 1)
        and conv.groups == 1
        and conv.bias is None
    )


def gains_from_weighted_kernel(layers: ConvNormAct, inputs: Tensor) -> bool:
    """Return whether `project_gated` is faster here: training on a CPU, without hooks on the layers."""
    return (
        not torch.compiler.is_compiling()
        and inputs.requires_grad
        and inputs.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and inputs.is_contiguous(memory_format=torch.channels_last)
        and not have_hooks(layers, *layers)
    )


def project_gated(inputs: Tensor, gate: Tensor, conv: Conv2d) -> Tensor:
    """Return the convolution of inputs × gate.

    Args:
        inputs: [B, C, H, W], channels last.
        gate: [B, C, 1, 1].

    Returns:
        [B, D, H, W], channels last.
    """
    height, width = inputs.shape[2:]
    kernels = conv.weight.flatten(1).t() * gate.flatten(1)[:, :, None]  # [B, C, D]
    outputs = torch.bmm(inputs.permute(0, 2, 3, 1).flatten(1, 2), kernels)
    return outputs.view(len(inputs), height, width, -1).permute(0, 3, 1, 2)
