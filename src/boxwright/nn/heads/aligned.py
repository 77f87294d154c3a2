"""Heads whose features are aligned with boxes: AlignDet's second step, and RefineDet++'s.

RoIConv (AlignDet, section 3.3) is a convolution whose taps lie in a box rather than around a cell. Each cell of a map
has a box: a K × K kernel samples the centers of the box's K × K bins, as RoIAlign would, in the layout of a deformable
convolution. Its alternatives, too, take a map and one box per cell, and return features of the same grid.

Dimensions: B batch, A anchors, S anchors a location, C channels or columns of the class head, H W grid, K taps a side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.heads.convolutional import HeadOutput, flatten_anchors, start_bias
from boxwright.nn.layers import Conv2d, ConvSettings, conv_norm_act, make_activation, make_conv

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


class AlignedHead(nn.Module):
    """Sample features at each cell's box, then predict one box per cell by 1×1 convolutions (AlignDet, figure 4)."""

    def __init__(
        self,
        samplings: Sequence[BoxSampling],
        levels: int,
        strides: Sequence[float],
        depth: int,
        output: HeadOutput,
        settings: ConvSettings,
    ) -> None:
        """Build the layers after the sampling.

        Args:
            samplings: Each level's sampling, finest first; the last serves all coarser levels too.
            strides: The stride of each level in pixels.
            depth: Channels of the samplings' outputs and of the hidden layer.
            settings: Convolutions; without normalization, as released.
        """
        super().__init__()
        self.output, self.strides = output, tuple(strides)
        # Two samplings are the release's cheaper variant, whose finest level has a smaller kernel of its own.
        self.of_level = tuple(min(level, len(samplings) - 1) for level in range(levels))
        self.samplings = nn.ModuleList(samplings)
        self.hidden = nn.ModuleList([conv_norm_act(depth, depth, 1, settings) for _ in samplings])
        self.activation = make_activation(settings.activation)
        self.boxes = nn.Sequential(make_conv(depth, output.code_size, 1, settings.kernel, bias=True))
        self.classes = nn.Sequential(make_conv(depth, output.columns, 1, settings.kernel, bias=True))
        start_bias(self.classes, output.class_bias)

    @property
    def class_layers(self) -> tuple[str, ...]:
        """Names within the head of the convolutions that give class logits."""
        return ("classes.0",)

    def forward(self, features: list[Tensor], boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Return box codes [B, A, code size] and class logits [B, A, C] for the boxes [B, A, 4], one per cell."""
        cells = [level.shape[-2] * level.shape[-1] for level in features]
        seen = []
        for level, part, stride, number in zip(
            features, torch.split(boxes, cells, 1), self.strides, self.of_level, strict=True
        ):
            sampled = self.samplings[number](level, part, stride)
            seen.append(self.hidden[number](self.activation(sampled)))
        codes, logits = [self.boxes(level) for level in seen], [self.classes(level) for level in seen]
        return self.output.finish(
            flatten_anchors(codes, self.output.code_size), flatten_anchors(logits, self.output.columns)
        )


class AlignmentConvHead(nn.Module):
    """Predict by 3×3 convolutions whose taps lie on the refined boxes, one for each anchor shape (RefineDet++)."""

    def __init__(
        self,
        in_channels: Sequence[int],
        anchors_per_location: Sequence[int],
        strides: Sequence[float],
        output: HeadOutput,
        settings: ConvSettings,
    ) -> None:
        """Build the convolutions of every level and anchor shape.

        Args:
            anchors_per_location: Anchors at each location of each level.
            strides: The stride of each level in pixels.
        """
        super().__init__()
        self.output, self.strides = output, tuple(strides)

        def layers(numbers: int, bias: float) -> nn.ModuleList:
            made = []
            for channels, count in zip(in_channels, anchors_per_location, strict=True):
                shapes = [RoIConv(channels, numbers, 3, settings, border="zero") for _ in range(count)]
                for shape in shapes:
                    start_bias(nn.Sequential(shape.conv), bias)
                made.append(nn.ModuleList(shapes))
            return nn.ModuleList(made)

        self.boxes, self.classes = layers(output.code_size, 0.0), layers(output.columns, output.class_bias)

    @property
    def class_layers(self) -> tuple[str, ...]:
        """Names within the head of the convolutions that give class logits."""
        return tuple(
            f"classes.{level}.{shape}.conv"
            for level, shapes in enumerate(self.classes)
            for shape in range(len(list(shapes.children())))
        )

    def forward(self, features: list[Tensor], boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Return box codes [B, A, code size] and class logits [B, A, C] for the boxes [B, A, 4] of all anchors."""
        shapes = [len(list(level.children())) for level in self.boxes]
        rows = [level.shape[-2] * level.shape[-1] * count for level, count in zip(features, shapes, strict=True)]
        parts = list(zip(features, torch.split(boxes, rows, 1), self.strides, shapes, strict=True))
        codes, logits = (
            [_each_shape(*part, layer) for part, layer in zip(parts, layers, strict=True)]
            for layers in (self.boxes, self.classes)
        )
        return self.output.finish(torch.cat(codes, 1), torch.cat(logits, 1))


def _each_shape(level: Tensor, boxes: Tensor, stride: float, count: int, layers: nn.Module) -> Tensor:
    """Return [B, H × W × S, numbers]: the outputs of each anchor shape's convolution at its boxes [B, H × W × S, 4]."""
    by_shape = boxes.reshape(boxes.shape[0], -1, count, 4).unbind(2)
    said = [layer(level, part, stride).flatten(2) for layer, part in zip(layers.children(), by_shape, strict=True)]
    return torch.stack(said, -1).permute(0, 2, 3, 1).flatten(1, 2)
