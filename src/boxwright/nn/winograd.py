"""3×3 convolutions with a quarter of the multiplications, by Winograd's algorithm, for inference on a CPU.

They are as exact as the direct way (`ops/winograd.py`). The overhead grows with channels and tiles, and the gain with
their product, so that wide layers gain; with the native extension, more of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.layers import Conv2d, count_tiles, is_plain_3x3
from boxwright.nn.ops import native
from boxwright.nn.ops.winograd import conv_3x3_transformed, transformed_kernel

# Channels, and tiles of 4×4 outputs over all images.
_LEAST_CHANNELS, _LEAST_TILES = 128, 16
_LEAST_CHANNELS_NATIVE, _LEAST_TILES_NATIVE = 32, 9


class WinogradConv2d(nn.Module):
    """A 3×3 convolution whose kernel is transformed in advance: four times the memory, no training."""

    kernel: Tensor
    bias: Tensor

    def __init__(self, conv: nn.Conv2d) -> None:
        """Transform the weights of a 3×3 convolution of stride 1 with one pixel of zero padding."""
        super().__init__()
        self.register_buffer("kernel", transformed_kernel(conv.weight.detach()))
        bias = conv.weight.new_zeros(conv.out_channels) if conv.bias is None else conv.bias.detach()
        self.register_buffer("bias", bias)

    def forward(self, input: Tensor) -> Tensor:
        """Return float32 [B, D, H, W] for float32 [B, C, H, W]."""
        return conv_3x3_transformed(input.contiguous(memory_format=torch.channels_last), self.kernel, self.bias)


class NativeWinogradConv2d(nn.Module):
    """The same by the native extension; it keeps the weights, too, for graphs and for places without the extension."""

    weight: Tensor
    kernel: Tensor
    bias: Tensor

    def __init__(self, conv: nn.Conv2d) -> None:
        """Transform the weights of a 3×3 convolution of stride 1 with one pixel of zero padding."""
        super().__init__()
        weight = conv.weight.detach()
        self.register_buffer("weight", weight)
        self.register_buffer("kernel", native.packed_kernel(weight))
        self.register_buffer("bias", weight.new_zeros(len(weight)) if conv.bias is None else conv.bias.detach())

    def forward(self, input: Tensor) -> Tensor:
        """Return float32 [B, D, H, W] for float32 [B, C, H, W]."""
        maps = input.contiguous(memory_format=torch.channels_last)
        if native.is_usable(maps) and not (maps.requires_grad and torch.is_grad_enabled()):
            return native.conv_3x3_packed(maps, self.kernel, self.bias)
        return F.conv2d(input, self.weight, self.bias, padding=1)


def winograd_layer(conv: nn.Conv2d, size: torch.Size) -> nn.Module | None:
    """Return a layer that computes a convolution of maps of a size [B, C, H, W] in less time, or None."""
    channels, tiles = min(conv.in_channels, conv.out_channels), count_tiles(size)
    # Not others' subclasses, which may change their weights or inputs.
    if type(conv) not in (Conv2d, nn.Conv2d) or not is_plain_3x3(conv):
        return None
    if native.EXTENSION is not None:
        gains = channels >= _LEAST_CHANNELS_NATIVE and tiles >= _LEAST_TILES_NATIVE
        return NativeWinogradConv2d(conv) if gains else None
    return WinogradConv2d(conv) if channels >= _LEAST_CHANNELS and tiles >= _LEAST_TILES else None


@torch.no_grad()
def replace_by_winograd(network: nn.Module, sizes: Mapping[nn.Module, torch.Size]) -> int:
    """Replace the convolutions that gain, irreversibly, and return their number.

    Args:
        network: In evaluation mode, float32, on a CPU.
        sizes: As `input_sizes` returns them; other convolutions stay.
    """
    layers = {conv: winograd_layer(conv, size) for conv, size in sizes.items() if isinstance(conv, nn.Conv2d)}
    replaced: dict[nn.Module, nn.Module] = {conv: layer for conv, layer in layers.items() if layer is not None}
    for parent in list(network.modules()):
        # `named_children` skips modules registered under a second name.
        for name, child in parent._modules.items():
            if child in replaced:
                setattr(parent, name, replaced[child])
    return len(replaced)
