"""How a step looks at a box of each cell: RoIConv (AlignDet, section 3.3), and what may stand in its place.

Each takes a map and the box of every cell, and returns features of the same grid.

Dimensions: B batch, C channels, H W grid, K taps a side.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import roi_align

from boxwright.models.layers import Conv2d, ConvSettings, make_conv
from boxwright.ops.roi_conv import Border, box_offsets, roi_conv


class BoxSampling(nn.Module):
    """A convolution that knows the box of each cell."""

    def forward(self, features: Tensor, boxes: Tensor, stride: float) -> Tensor:
        """Return the features of each cell.

        Args:
            features: float [B, C, H, W].
            boxes: float [B, H × W, 4], xyxy in pixels of the input; a cell's own, row by row.
            stride: Pixels between cells.

        Returns:
            float [B, C', H, W].
        """
        raise NotImplementedError


class RoIConv(BoxSampling):
    """Look at the centres of a box's K × K bins."""

    def __init__(
        self, in_channels: int, depth: int, kernel_size: int, settings: ConvSettings, *, border: Border = "last"
    ) -> None:
        """Build the kernel.

        Args:
            border: What taps beyond the map read.
        """
        super().__init__()
        self.conv = make_conv(in_channels, depth, kernel_size, settings.kernel, bias=True)
        self.border: Border = border

    def forward(self, features: Tensor, boxes: Tensor, stride: float) -> Tensor:
        """Return float [B, C', H, W]."""
        offsets = box_offsets(boxes, _grid(features), stride, _side(self.conv))
        return roi_conv(features, offsets, self.conv.weight, self.conv.bias, border=self.border)


class WindowConv(BoxSampling):
    """Look around the cell, whatever the box: a plain convolution, for comparison."""

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
    """Look where features say, as a deformable convolution does (Dai et al., 2017); at first around the cell."""

    def __init__(self, in_channels: int, depth: int, kernel_size: int, settings: ConvSettings) -> None:
        """Build the kernel, and that of the offsets; arguments as for `RoIConv`."""
        super().__init__()
        self.conv = make_conv(in_channels, depth, kernel_size, settings.kernel, bias=True)
        self.offsets = _offsets_of(in_channels, kernel_size, settings)

    def forward(self, features: Tensor, boxes: Tensor, stride: float) -> Tensor:
        """Return float [B, C', H, W]."""
        del boxes, stride
        return roi_conv(features, self.offsets(features), self.conv.weight, self.conv.bias, border="zero")


class GuidedConv(BoxSampling):
    """Look where the box's height and width say, as Guided Anchoring does (Wang et al., 2019)."""

    def __init__(self, in_channels: int, depth: int, kernel_size: int, settings: ConvSettings) -> None:
        """Build the kernel, and that of the offsets; arguments as for `RoIConv`."""
        super().__init__()
        self.conv = make_conv(in_channels, depth, kernel_size, settings.kernel, bias=True)
        self.offsets = _offsets_of(2, kernel_size, settings)

    def forward(self, features: Tensor, boxes: Tensor, stride: float) -> Tensor:
        """Return float [B, C', H, W]."""
        sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=1).div(stride).log()
        shapes = sides.transpose(1, 2).reshape(boxes.shape[0], 2, *_grid(features)).to(features.dtype)
        return roi_conv(features, self.offsets(shapes), self.conv.weight, self.conv.bias, border="zero")


class RoIAlignConv(BoxSampling):
    """Crop K × K bins of each box by RoIAlign, four samples a bin, and look at the crop (Mask R-CNN, section 3)."""

    def __init__(self, in_channels: int, depth: int, kernel_size: int, settings: ConvSettings) -> None:
        """Build the kernel; arguments as for `RoIConv`."""
        super().__init__()
        self.conv = make_conv(in_channels, depth, kernel_size, settings.kernel, bias=True)

    def forward(self, features: Tensor, boxes: Tensor, stride: float) -> Tensor:
        """Return float [B, C', H, W]."""
        # Pixels in less than 32 bits would be pixels off.
        regions = list(boxes.float().unbind(0))
        crops = roi_align(features.float(), regions, _side(self.conv), 1 / stride, sampling_ratio=2, aligned=True)
        seen = F.linear(crops.to(self.conv.weight.dtype).flatten(1), self.conv.weight.flatten(1), self.conv.bias)
        cells = seen.reshape(boxes.shape[0], -1, seen.shape[1])
        return cells.transpose(1, 2).reshape(boxes.shape[0], -1, *_grid(features))


def _offsets_of(in_channels: int, kernel_size: int, settings: ConvSettings) -> Conv2d:
    conv = make_conv(in_channels, 2 * kernel_size**2, 1, settings.kernel, bias=True)
    with torch.no_grad():
        conv.weight.zero_()
    return conv


def _grid(features: Tensor) -> tuple[int, int]:
    return features.shape[-2], features.shape[-1]


def _side(conv: Conv2d) -> int:
    return conv.kernel_size[0]
