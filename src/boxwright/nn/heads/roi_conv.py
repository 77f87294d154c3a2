"""Convolutions over each cell's box: RoIConv (AlignDet, section 3.3) and its alternatives.

Each takes a map and one box per cell, and returns features of the same grid.

Dimensions: B batch, C channels, H W grid, K taps a side.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.layers import Conv2d, ConvSettings, make_conv
from boxwright.nn.ops.roi_conv import Border, box_offsets, roi_conv


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
        self.offsets = _offsets_of(in_channels, kernel_size, settings)

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
        self.offsets = _offsets_of(2, kernel_size, settings)

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


def _offsets_of(in_channels: int, kernel_size: int, settings: ConvSettings) -> Conv2d:
    conv = make_conv(in_channels, 2 * kernel_size**2, 1, settings.kernel, bias=True)
    with torch.no_grad():
        # Training starts from the plain window: with offsets of 0 the convolution is an ordinary one.
        conv.weight.zero_()
    return conv


def _grid(features: Tensor) -> tuple[int, int]:
    return features.shape[-2], features.shape[-1]


def _side(conv: Conv2d) -> int:
    return conv.kernel_size[0]
