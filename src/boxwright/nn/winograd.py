"""3×3 convolutions with a quarter of the multiplications, by Winograd's minimal filtering, F(4×4, 3×3), on a CPU.

After Lavin and Gray (Fast Algorithms for Convolutional Neural Networks, 2016): a map is cut into tiles of 4×4 outputs,
for which 6×6 inputs are needed. Seen as polynomials, tile and kernel are evaluated at points, multiplied there,
summed over channels, and outputs are read off the product. The evaluations are products with small matrices; the
multiplications are 36 products of matrices [tiles, channels in] and [channels in, channels out], in which nearly all of
the time is spent. The overhead grows with channels and tiles, and the gain with their product, so that wide layers
gain; with the native extension, more of them.

The points determine the rounding error. With 0, ±2/3, ±3/2 and infinity it equals the direct method's
(`tests/nn/test_winograd.py`); with the usual 0, ±1, ±2 and infinity it is four times as large.

Dimensions: B batch, C input channels, D output channels, H W grid, T tiles, h w rows and columns of tiles.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.layers import Conv2d, count_tiles, is_plain_3x3, zero_padded
from boxwright.nn.ops import native

_POINTS = (0.0, 2 / 3, -2 / 3, 3 / 2, -3 / 2)  # and infinity
_OUT, _IN, _SIDE = 4, 6, 3
# The maximum numbers in the tiles of images that are convolved together.
_MOST_NUMBERS = 2**24


def one_dimensional() -> tuple[Tensor, Tensor, Tensor]:
    """Return matrices that evaluate a tile's side [6, 6] and a kernel's [6, 3] at points, and interpolate [4, 6]."""

    def powers(count: int) -> Tensor:
        """Return the powers of each point; at infinity only the last coefficient counts."""
        finite = torch.vander(torch.tensor(_POINTS, dtype=torch.float64), count, increasing=True)
        return torch.cat([finite, torch.eye(count, dtype=torch.float64)[-1:]])

    return torch.linalg.inv(powers(_IN)).T.float(), powers(_SIDE).float(), powers(_OUT).T.float()


# The transforms for both dimensions are [36, 36], [36, 9] and [16, 36]. They are on the CPU, even if the first import
# happens while another device, such as "meta", is the default.
with torch.device("cpu"):
    _AT_TILE, _AT_KERNEL, _OUTPUTS = (torch.kron(matrix, matrix) for matrix in one_dimensional())


def transformed_kernel(kernel: Tensor) -> Tensor:
    """Return a kernel [D, C, 3, 3] evaluated at all pairs of points, [36, C, D]."""
    outs, ins = kernel.shape[:2]
    return (_AT_KERNEL @ kernel.permute(2, 3, 1, 0).reshape(9, -1)).view(_IN * _IN, ins, outs)


def conv_3x3_transformed(inputs: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    """Return a zero-padded convolution of stride 1, without gradients.

    Args:
        inputs: float32 [B, C, H, W], channels last.
        kernel: As `transformed_kernel` returns it.
        bias: [D], or None.

    Returns:
        float32 [B, D, H, W], channels last.
    """
    batch, _, height, width = inputs.shape
    channels = kernel.shape[2]
    down, across = tile_grid(height, width)
    size = (batch, channels, down * _OUT, across * _OUT)
    output = torch.empty(size, dtype=inputs.dtype, device=inputs.device, memory_format=torch.channels_last)
    into = output.permute(0, 2, 3, 1).view(batch, down, _OUT, across, _OUT, channels)
    for images in image_chunks(inputs, max(kernel.shape[1:])):
        products = torch.bmm(_evaluated_tiles(inputs[images]), kernel)
        tiles = (_OUTPUTS @ products.view(_IN * _IN, -1)).view(_OUT, _OUT, -1, down, across, channels)
        # Copied and shifted by the bias in one pass.
        torch.add(tiles.permute(2, 3, 0, 4, 1, 5), 0 if bias is None else bias, out=into[images])
    if (height, width) == size[2:]:
        return output
    return output[:, :, :height, :width].clone(memory_format=torch.channels_last)


def image_chunks(inputs: Tensor, channels: int) -> list[slice]:
    """Return slices of a batch whose tiles fit in caches, with at least one image each."""
    height, width = inputs.shape[-2:]
    down, across = tile_grid(height, width)
    at_once = max(1, _MOST_NUMBERS // (_IN * _IN * down * across * channels))
    return [slice(start, start + at_once) for start in range(0, len(inputs), at_once)]


def tile_grid(height: int, width: int) -> tuple[int, int]:
    """Return how many tiles a map has along each side, the last perhaps only in part."""
    return -(-height // _OUT), -(-width // _OUT)


def _evaluated_tiles(inputs: Tensor) -> Tensor:
    """Return all 6×6 tiles of inputs evaluated at all pairs of points, [36, T, C]."""
    batch, channels, height, width = inputs.shape
    down, across = tile_grid(height, width)
    padded = zero_padded(inputs, (1, across * _OUT + 1 - width, 1, down * _OUT + 1 - height)).permute(0, 2, 3, 1)
    image, row, column, channel = padded.stride()
    tiles = padded.as_strided(
        (_IN, _IN, batch, down, across, channels), (row, column, image, _OUT * row, _OUT * column, channel)
    )
    return (_AT_TILE @ tiles.reshape(_IN * _IN, -1)).view(_IN * _IN, -1, channels)


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
        sizes: As `input_sizes` returns them; other layers stay.
    """
    layers = {conv: winograd_layer(conv, size) for conv, size in sizes.items() if isinstance(conv, nn.Conv2d)}
    replaced: dict[nn.Module, nn.Module] = {conv: layer for conv, layer in layers.items() if layer is not None}
    for parent in list(network.modules()):
        # `named_children` skips modules registered under a second name.
        for name, child in parent._modules.items():
            if child in replaced:
                setattr(parent, name, replaced[child])
    return len(replaced)
