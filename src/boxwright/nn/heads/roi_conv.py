"""Convolutions over each cell's box: RoIConv (AlignDet, section 3.3) and its alternatives.

Each takes a map and one box per cell, and returns features of the same grid.

RoIConv: a convolution whose taps lie in a box rather than around a cell (AlignDet, section 3.3).

Each cell of a map has a box. A K × K kernel samples the centers of the box's K × K bins, as RoIAlign would, in the
layout of a deformable convolution.

Dimensions: B batch, C channels, H W grid, K taps a side.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.layers import Conv2d, ConvSettings, make_conv

# The value of a tap beyond the outermost cells' centers: "zero" fades to 0 within a cell (torchvision); "last" repeats
# the last row and column, but reads 0 before the first (MXNet, in which AlignDet was released).
Border = Literal["zero", "last"]
# The distance, in maps, at which a tap reads nothing.
_FAR = -2.0


def box_offsets(boxes: Tensor, grid: tuple[int, int], stride: float, kernel_size: int) -> Tensor:
    """Return the offset of each tap of each cell from a plain convolution's.

    A box as large as the kernel's window around its cell gives 0. As in the released code, a box includes its last
    pixel and one more cell.

    Args:
        boxes: float [B, H × W, 4], one per cell, row by row; xyxy in pixels of the input.
        stride: Pixels between cells.

    Returns:
        float [B, 2 K², H, W] in cells: for each tap, row by row, its offset in y and in x.
    """
    height, width = grid
    taps = torch.arange(kernel_size, dtype=boxes.dtype, device=boxes.device)
    low, high = boxes[..., :2] / stride, (boxes[..., 2:] - 1) / stride
    bins = (high - low + 1) / kernel_size
    x, y = (low + (bins - 1) / 2)[..., None, :].add(bins[..., None, :] * taps[:, None]).unbind(-1)
    around = taps - (kernel_size - 1) / 2
    column = torch.arange(width, dtype=boxes.dtype, device=boxes.device).repeat(height)
    row = torch.arange(height, dtype=boxes.dtype, device=boxes.device).repeat_interleave(width)
    x, y = x - (column[:, None] + around), y - (row[:, None] + around)
    square = (*x.shape, kernel_size)
    offsets = torch.stack([y[..., :, None].expand(square), x[..., None, :].expand(square)], -1)
    return offsets.flatten(2).transpose(1, 2).reshape(boxes.shape[0], -1, height, width)


def roi_conv(
    features: Tensor, offsets: Tensor, kernel: Tensor, bias: Tensor | None = None, *, border: Border = "last"
) -> Tensor:
    """Return a convolution with offset taps: the map is sampled at each, then multiplied by the kernel.

    With "zero" it is torchvision's `deform_conv2d`, whose gradients take seven times as long on a CPU.

    Args:
        features: float [B, C, H, W].
        offsets: float [B, 2 K², H, W], as `box_offsets` returns them.
        kernel: float [C', C, K, K].
        bias: float [C'].
        border: The value of taps beyond the map.

    Returns:
        float [B, C', H, W].
    """
    batch, _, height, width = features.shape
    # Positions in half precision would be cells off.
    precise = torch.promote_types(features.dtype, torch.float32)
    y, x = _positions(offsets.to(precise), kernel.shape[-1])
    if border == "last":
        beyond = (y < 0) | (x < 0) | (y >= height) | (x >= width)
        y, x = torch.where(beyond, _FAR * height, y.clamp(max=height - 1)), x.clamp(max=width - 1)
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1).flatten(2, 3)
    taps = F.grid_sample(features.to(precise), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    outputs = torch.einsum("ock,bckn->bon", kernel.flatten(2), taps.to(kernel.dtype))
    return (outputs if bias is None else outputs + bias[:, None]).view(batch, -1, height, width)


def _positions(offsets: Tensor, kernel_size: int) -> tuple[Tensor, Tensor]:
    """Return y and x [B, K², H, W] of each tap, in cells from the first one's center; far away if not finite."""
    batch, _, height, width = offsets.shape
    taps = torch.arange(kernel_size, dtype=offsets.dtype, device=offsets.device) - (kernel_size - 1) / 2
    row = torch.arange(height, dtype=offsets.dtype, device=offsets.device)[:, None]
    column = torch.arange(width, dtype=offsets.dtype, device=offsets.device)
    y, x = offsets.reshape(batch, -1, 2, height, width).unbind(2)
    y = y + taps.repeat_interleave(kernel_size)[:, None, None] + row
    x = x + taps.repeat(kernel_size)[:, None, None] + column
    far = -_FAR * max(height, width)
    return torch.nan_to_num(y, far).clamp(-far, far), torch.nan_to_num(x, far).clamp(-far, far)


class BoxSampling(nn.Module):
    """A convolution that takes the box of each cell."""

    def forward(self, features: Tensor, boxes: Tensor, stride: float) -> Tensor:
        """Return the features of each cell.

        Args:
            features: float [B, C, H, W].
            boxes: float [B, H × W, 4], one per cell, row by row; xyxy in pixels of the input.
            stride: Pixels between cells.

        Returns:
            float [B, C', H, W].
        """
        raise NotImplementedError


class RoIConv(BoxSampling):
    """Sample the centers of a box's K × K bins."""

    def __init__(
        self, in_channels: int, depth: int, kernel_size: int, settings: ConvSettings, *, border: Border = "last"
    ) -> None:
        """Build the kernel.

        Args:
            border: The value of taps beyond the map.
        """
        super().__init__()
        self.conv = make_conv(in_channels, depth, kernel_size, settings.kernel, bias=True)
        self.border: Border = border

    def forward(self, features: Tensor, boxes: Tensor, stride: float) -> Tensor:
        """Return float [B, C', H, W]."""
        offsets = box_offsets(boxes, _grid(features), stride, _side(self.conv))
        return roi_conv(features, offsets, self.conv.weight, self.conv.bias, border=self.border)


class WindowConv(BoxSampling):
    """A plain convolution around the cell, which ignores the box; for comparison."""

    def __init__(self, in_channels: int, depth: int, kernel_size: int, settings: ConvSettings) -> None:
        """Build the kernel; arguments as for `RoIConv`."""
        super().__init__()
        self.conv = make_conv(in_channels, depth, kernel_size, settings.kernel, bias=True)

    def forward(self, features: Tensor, boxes: Tensor, stride: float) -> Tensor:
        """Return float [B, C', H, W]."""
        del boxes, stride
        seen: Tensor = self.conv(features)
        return seen


class LearnedConv(BoxSampling):
    """A deformable convolution with offsets predicted from features, initially 0 (Dai et al., 2017)."""

    def __init__(self, in_channels: int, depth: int, kernel_size: int, settings: ConvSettings) -> None:
        """Build the kernels of features and offsets; arguments as for `RoIConv`."""
        super().__init__()
        self.conv = make_conv(in_channels, depth, kernel_size, settings.kernel, bias=True)
        self.offsets = _build_offsets(in_channels, kernel_size, settings)

    def forward(self, features: Tensor, boxes: Tensor, stride: float) -> Tensor:
        """Return float [B, C', H, W]."""
        del boxes, stride
        return roi_conv(features, self.offsets(features), self.conv.weight, self.conv.bias, border="zero")


class GuidedConv(BoxSampling):
    """A deformable convolution with offsets predicted from the box's size (Guided Anchoring, Wang et al., 2019)."""

    def __init__(self, in_channels: int, depth: int, kernel_size: int, settings: ConvSettings) -> None:
        """Build the kernels of features and offsets; arguments as for `RoIConv`."""
        super().__init__()
        self.conv = make_conv(in_channels, depth, kernel_size, settings.kernel, bias=True)
        self.offsets = _build_offsets(2, kernel_size, settings)

    def forward(self, features: Tensor, boxes: Tensor, stride: float) -> Tensor:
        """Return float [B, C', H, W]."""
        # At least a pixel, as the logarithm of an empty box is not finite.
        sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=1).div(stride).log()
        shapes = sides.transpose(1, 2).reshape(boxes.shape[0], 2, *_grid(features)).to(features.dtype)
        return roi_conv(features, self.offsets(shapes), self.conv.weight, self.conv.bias, border="zero")


class RoIAlignConv(BoxSampling):
    """A convolution of K × K bins cropped by RoIAlign with four samples per bin (Mask R-CNN, section 3)."""

    def __init__(self, in_channels: int, depth: int, kernel_size: int, settings: ConvSettings) -> None:
        """Build the kernel; arguments as for `RoIConv`."""
        super().__init__()
        self.conv = make_conv(in_channels, depth, kernel_size, settings.kernel, bias=True)

    def forward(self, features: Tensor, boxes: Tensor, stride: float) -> Tensor:
        """Return float [B, C', H, W]."""
        from torchvision.ops import roi_align  # its import takes a second

        # Coordinates in half precision would be pixels off.
        regions = list(boxes.float().unbind(0))
        crops = roi_align(features.float(), regions, _side(self.conv), 1 / stride, sampling_ratio=2, aligned=True)
        seen = F.linear(crops.to(self.conv.weight.dtype).flatten(1), self.conv.weight.flatten(1), self.conv.bias)
        cells = seen.reshape(boxes.shape[0], -1, seen.shape[1])
        return cells.transpose(1, 2).reshape(boxes.shape[0], -1, *_grid(features))


def _build_offsets(in_channels: int, kernel_size: int, settings: ConvSettings) -> Conv2d:
    conv = make_conv(in_channels, 2 * kernel_size**2, 1, settings.kernel, bias=True)
    with torch.no_grad():
        # Training starts from the plain window: with offsets of 0 the convolution is an ordinary one.
        conv.weight.zero_()
    return conv


def _grid(features: Tensor) -> tuple[int, int]:
    return features.shape[-2], features.shape[-1]


def _side(conv: Conv2d) -> int:
    return conv.kernel_size[0]
