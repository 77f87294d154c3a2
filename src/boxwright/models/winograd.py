"""Which convolutions of 3×3 gain from Winograd's algorithm, with a quarter of the multiplications, on a CPU.

It costs nothing in exactness (`ops/winograd.py`), and its overhead grows with channels where its gain grows with their
product: from 128 channels it is faster (`benchmarks/layers.py`). A kernel is transformed anew for each step; in an
optimized detector once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.ops.winograd import conv_3x3_transformed, transformed_kernel

_LEAST_CHANNELS = 128
# Tiles of 4×4 outputs, of all images: for less, transforming a kernel costs more than is gained, or running at all.
_LEAST_TILES, _LEAST_TILES_TRANSFORMED = 100, 16


def gains_from_winograd(conv: nn.Conv2d, inputs: Tensor) -> bool:
    """Return whether `conv_3x3` computes a wide convolution of these inputs, and is faster."""
    return (
        not torch.compiler.is_compiling()  # before sizes are read, which a graph may leave open
        and _tiles(inputs) >= _LEAST_TILES
        and inputs.device.type == "cpu"
        and inputs.dtype == conv.weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and inputs.is_contiguous(memory_format=torch.channels_last)
    )


def is_wide_3x3(conv: nn.Conv2d) -> bool:
    """Return whether a convolution is of the kind that may gain, whatever its inputs."""
    return (
        conv.kernel_size == (3, 3)
        and conv.stride == conv.dilation == conv.padding == (1, 1)
        and conv.padding_mode == "zeros"
        and conv.groups == 1
        and min(conv.in_channels, conv.out_channels) >= _LEAST_CHANNELS
    )


def _tiles(inputs: Tensor) -> int:
    return len(inputs) * -(-inputs.shape[-2] // 4) * -(-inputs.shape[-1] // 4)


class WinogradConv2d(nn.Module):
    """A convolution of 3×3 whose kernel is transformed in advance: four times the memory, and not to be trained."""

    kernel: Tensor
    bias: Tensor | None

    def __init__(self, conv: nn.Conv2d) -> None:
        """Take over a convolution's weights.

        Args:
            conv: Of 3×3, stride 1, with one pixel of zeros around.
        """
        super().__init__()
        self.register_buffer("kernel", transformed_kernel(conv.weight.detach()))
        self.register_buffer("bias", None if conv.bias is None else conv.bias.detach())

    def forward(self, input: Tensor) -> Tensor:
        """Return float32 [B, D, H, W] for float32 [B, C, H, W]."""
        return conv_3x3_transformed(input.contiguous(memory_format=torch.channels_last), self.kernel, self.bias)


@torch.no_grad()
def replace_by_winograd(network: nn.Module, run: Callable[[], object]) -> int:
    """Replace the convolutions that gain from it, for good, and return how many.

    Args:
        network: In evaluation mode, float32, on a CPU.
        run: Runs it, at inputs of the usual size.
    """
    found: dict[nn.Module, nn.Module] = {}

    def sees(conv: nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(conv, nn.Conv2d) and _tiles(inputs[0]) >= _LEAST_TILES_TRANSFORMED and conv not in found:
            found[conv] = WinogradConv2d(conv)

    with ExitStack() as hooks:
        for module in network.modules():
            if isinstance(module, nn.Conv2d) and is_wide_3x3(module):
                hooks.enter_context(module.register_forward_pre_hook(sees))
        run()
    for parent in list(network.modules()):
        # Not by `named_children`, which leaves out what is there under a second name.
        for name, child in parent._modules.items():
            if child in found:
                setattr(parent, name, found[child])
    return len(found)
