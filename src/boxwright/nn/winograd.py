"""The choice of 3×3 convolutions that Winograd's algorithm, with a quarter of the multiplications, speeds up on a CPU.

It is as exact as the direct way (`ops/winograd.py`). Its overhead grows with channels and its gain with their product:
a step gains from 128 channels (`benchmarks/layers.py`). There a kernel is transformed at each step; in an optimized
detector once, and laid out for a kernel in C that gains from 16 channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from boxwright.base.c_compiler import CompilerError
from boxwright.nn.batch_norm import StoredNorm2d
from boxwright.nn.layers import Conv2d
from boxwright.nn.ops import winograd_tiles
from boxwright.nn.ops.compiled import is_readable
from boxwright.nn.ops.winograd import conv_3x3_transformed, transformed_kernel
from boxwright.nn.ops.winograd_tiles import ChannelScale

_LEAST_CHANNELS, _LEAST_CHANNELS_PACKED = 128, 16
# Tiles of 4×4 outputs over all images: below, transforming a kernel, or the algorithm itself, costs more than it saves.
_LEAST_TILES, _LEAST_TILES_TRANSFORMED, _LEAST_TILES_PACKED = 100, 16, 9


def gains_from_winograd(conv: nn.Conv2d, inputs: Tensor) -> bool:
    """Return whether `conv_3x3` supports these inputs of a wide convolution and is faster."""
    return (
        not torch.compiler.is_compiling()  # checked before sizes, which may be dynamic in a graph
        and _tiles(inputs.shape) >= _LEAST_TILES
        and conv.weight.dtype == torch.float32
        and _is_plain(inputs)
        and inputs.is_contiguous(memory_format=torch.channels_last)
    )


def _is_plain(inputs: Tensor) -> bool:
    """Return whether inputs have numbers on a CPU, whose products are float32."""
    return is_readable(inputs) and not torch.is_autocast_enabled("cpu")


def is_wide_3x3(conv: nn.Conv2d, channels: int = _LEAST_CHANNELS) -> bool:
    """Return whether a convolution of at least so many channels may gain, regardless of its inputs."""
    return (
        conv.kernel_size == (3, 3)
        and conv.stride == conv.dilation == conv.padding == (1, 1)
        and conv.padding_mode == "zeros"
        and conv.groups == 1
        and min(conv.in_channels, conv.out_channels) >= channels
    )


def _tiles(size: torch.Size) -> int:
    return size[0] * -(-size[-2] // 4) * -(-size[-1] // 4)


class WinogradConv2d(nn.Module):
    """A 3×3 convolution whose kernel is transformed in advance: four times the memory, no training.

    Where a C compiler is found, the kernel is packed too.
    """

    kernel: Tensor
    bias: Tensor

    def __init__(self, conv: nn.Conv2d) -> None:
        """Transform the weights of a 3×3 convolution of stride 1 with one pixel of zero padding."""
        super().__init__()
        kernel = transformed_kernel(conv.weight.detach())
        self.packed = not isinstance(winograd_tiles.kernels(), CompilerError)
        self.register_buffer("kernel", winograd_tiles.packed_kernel(kernel) if self.packed else kernel)
        bias = conv.weight.new_zeros(conv.out_channels) if conv.bias is None else conv.bias.detach()
        self.register_buffer("bias", bias)

    def forward(self, input: Tensor) -> Tensor:
        """Return float32 [B, D, H, W] for float32 [B, C, H, W]."""
        return self.of_levels([input], [None], -math.inf, math.inf)[0]

    def of_levels(
        self, levels: Sequence[Tensor], norms: Sequence[StoredNorm2d | None], low: float, high: float
    ) -> list[Tensor]:
        """Return each level's output, normalized if asked, within bounds.

        Both cost next to nothing where the kernel is packed.
        """
        maps = [level.contiguous(memory_format=torch.channels_last) for level in levels]
        if self.packed and not torch.compiler.is_compiling() and all(_is_plain(level) for level in maps):
            scales = [self._scale(norm) for norm in norms]
            return winograd_tiles.conv_3x3_packed(maps, self.kernel, scales, low, high)
        kernel = winograd_tiles.unpacked_kernel(self.kernel, len(self.bias)) if self.packed else self.kernel
        outputs = [conv_3x3_transformed(level, kernel, self.bias) for level in maps]
        outputs = [one if norm is None else norm(one) for one, norm in zip(outputs, norms, strict=True)]
        return outputs if low == -math.inf and high == math.inf else [one.clamp_(low, high) for one in outputs]

    def _scale(self, norm: StoredNorm2d | None) -> ChannelScale:
        return ChannelScale(self.bias) if norm is None else ChannelScale(norm.shifted(self.bias), norm.gain)


@torch.no_grad()
def replace_by_winograd(network: nn.Module, sizes: Mapping[nn.Module, torch.Size]) -> int:
    """Replace the convolutions that gain, irreversibly, and return their number.

    Packed kernels gain in more places.

    Args:
        network: In evaluation mode, float32, on a CPU.
        sizes: As `input_sizes` returns them; other convolutions stay.
    """
    least_channels, least_tiles = _LEAST_CHANNELS, _LEAST_TILES_TRANSFORMED
    if not isinstance(winograd_tiles.kernels(), CompilerError):
        least_channels, least_tiles = _LEAST_CHANNELS_PACKED, _LEAST_TILES_PACKED
    found: dict[nn.Module, nn.Module] = {
        conv: WinogradConv2d(conv)
        for conv, size in sizes.items()
        # Not others' subclasses, which may change their weights or inputs.
        if (isinstance(conv, Conv2d) or type(conv) is nn.Conv2d)
        and is_wide_3x3(conv, least_channels)
        and _tiles(size) >= least_tiles
    }
    for parent in list(network.modules()):
        # `named_children` skips modules registered under a second name.
        for name, child in parent._modules.items():
            if child in found:
                setattr(parent, name, found[child])
    return len(found)
