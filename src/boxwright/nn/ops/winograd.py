"""3×3 convolutions with a quarter of the multiplications: Winograd's minimal filtering, F(4×4, 3×3).

After Lavin and Gray (Fast Algorithms for Convolutional Neural Networks, 2016): a map is cut into tiles of 4×4 outputs,
for which 6×6 inputs are needed. Seen as polynomials, tile and kernel are evaluated at points, multiplied there,
summed over channels, and outputs are read off the product. The evaluations are products with small matrices; the
multiplications are 36 products of matrices [tiles, channels in] and [channels in, channels out], in which nearly all of
the time is spent.

The points determine the rounding error. With 0, ±2/3, ±3/2 and infinity it equals the direct method's
(`tests/nn/ops/test_winograd.py`); with the usual 0, ±1, ±2 and infinity it is four times as large.

Dimensions: B batch, C input channels, D output channels, H W grid, T tiles, h w rows and columns of tiles.
"""

from __future__ import annotations

import torch
from torch import Tensor

from boxwright.nn.ops.padding import zero_padded

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
