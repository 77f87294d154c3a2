"""Resizing inside a graph, where the pictures' height and width are unknown when it is made.

A resizer with a fixed output size can be in a graph, computing with tensors what it otherwise computes with numbers.
One whose output size depends on the picture cannot: anchors are laid for one input size.

Dimensions: B batch, H W picture, C channels, S side of a padded square.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from boxwright.base.errors import ExportError
from boxwright.nn.ops.resize import resize_antialiased, resize_bilinear, resize_half_pixel
from boxwright.nn.preprocessing import (
    ConditionalShapeResizer,
    FixedShapeResizer,
    IdentityResizer,
    ImageResizer,
    KeepAspectRatioResizer,
    PadToMultipleResizer,
    to_grayscale,
)


@dataclass(frozen=True)
class ResizedBatch:
    """A batch at the network's size.

    Attributes:
        pixels: float32 [B, H', W', C] in 0..255.
        true_sizes: int64 [B, 2]; each picture's (height, width) without padding.
    """

    pixels: Tensor
    true_sizes: Tensor


class Stretch(nn.Module):
    """`FixedShapeResizer` for a batch."""

    def __init__(self, resizer: FixedShapeResizer) -> None:
        """Take the resizer."""
        super().__init__()
        self.resizer = resizer

    def forward(self, images: Tensor) -> ResizedBatch:
        """Return a batch [B, height, width, C]."""
        size = (self.resizer.height, self.resizer.width)
        if self.resizer.resize is resize_antialiased:
            pixels = images.to(torch.float32)
            for axis in (0, 1):
                pixels = _antialiased(pixels, 1 + axis, torch.full((), float(size[axis])), size[axis])
        else:
            pixels = self.resizer.resize(images, *size)
        if self.resizer.convert_to_grayscale:
            pixels = to_grayscale(pixels)
        return ResizedBatch(pixels, torch.tensor([size], device=images.device).expand(images.shape[0], 2))


class FitIntoSquare(nn.Module):
    """`KeepAspectRatioResizer` with padding: each pixel of the square gathers its four source pixels."""

    def __init__(self, resizer: KeepAspectRatioResizer) -> None:
        """Take the resizer."""
        super().__init__()
        self.resizer = resizer
        self.whole = torch.round if resizer.to_whole is np.rint else torch.floor
        antialiased = resizer.resize is resize_antialiased
        self.interpolated = (
            _antialiased if antialiased else partial(_interpolated, center=PIXEL_CENTERS[resizer.resize])
        )

    def forward(self, images: Tensor) -> ResizedBatch:
        """Return a batch [B, S, S, C]; padding is 0, or the resizer's color."""
        size = self.new_size(images)
        pixels = images.to(torch.float32)
        for axis in (0, 1):
            pixels = self.interpolated(pixels, 1 + axis, size[axis], self.resizer.max_dimension)
        places = torch.arange(self.resizer.max_dimension, device=images.device)
        inside = (places[:, None] < size[0]) & (places < size[1])
        color = pixels.new_tensor(self.resizer.per_channel_pad_value or (0.0,))
        pixels = torch.where(inside[..., None], pixels, color)
        if self.resizer.convert_to_grayscale:
            pixels = to_grayscale(pixels)
        return ResizedBatch(pixels, size.to(torch.int64)[None].expand(images.shape[0], 2))

    def new_size(self, images: Tensor) -> Tensor:
        """Return (height, width) before padding, float32 [2], like `KeepAspectRatioResizer.new_size`."""
        sides = torch.stack([_length(images, 1), _length(images, 2)])
        larger = self.whole(sides * (self.resizer.min_dimension / sides.amin(0)))
        limit = float(self.resizer.max_dimension)
        within = self.whole(sides * (limit / sides.amax(0)))
        return torch.where(larger.amax(0) > limit, within, larger).clamp(min=1)


def _length(images: Tensor, dim: int) -> Tensor:
    """Return the length of a side as float32 []."""
    # A tensor, as the length is only a symbol while the graph is made.
    return torch.full((), images.shape[dim], dtype=torch.float32, device=images.device)


def _interpolated(pixels: Tensor, dim: int, size: Tensor, count: int, center: float) -> Tensor:
    """Resize bilinearly along one dimension, to `count` pixels; those beyond the new size are undefined.

    Args:
        pixels: float32 [B, H, W, C].
        size: float32 []; the new length.
        center: Where in a pixel its value is: 0 in TF, 0.5 elsewhere.
    """
    length = _length(pixels, dim)
    places = torch.arange(count, dtype=torch.float32, device=pixels.device)
    source = ((places + center) * (length / size) - center).clamp(min=0.0)
    low = source.floor().clamp(max=length - 1)
    high = (low + 1).clamp(max=length - 1)
    shape = [1] * pixels.ndim
    shape[dim] = count
    share = (source - source.floor()).view(shape)
    first, second = (pixels.index_select(dim, place.to(torch.int64)) for place in (low, high))
    return first + (second - first) * share


def _antialiased(pixels: Tensor, dim: int, size: Tensor, count: int) -> Tensor:
    """Resize along one dimension as by Pillow's bilinear filter, to `count` pixels; those beyond `size` are undefined.

    As a product of matrices, which every runtime has, while few have antialiasing.

    Args:
        pixels: float32 [B, H, W, C].
        size: float32 []; the new length.
    """
    length = _length(pixels, dim)
    step = length / size.to(pixels.device)
    places = torch.arange(count, dtype=torch.float32, device=pixels.device) + 0.5
    covered = torch.arange(pixels.shape[dim], device=pixels.device).to(torch.float32) + 0.5
    # A triangle over as many pixels as a new one covers, on each side of its center.
    shares = (1 - ((places * step)[:, None] - covered).abs() / step.clamp(min=1)).clamp(min=0)
    shares = shares / shares.sum(1, keepdim=True).clamp(min=1e-6)
    return torch.matmul(shares, pixels.movedim(dim, -2)).movedim(-2, dim)


def refuse_resizer(resizer: ImageResizer) -> str:
    """Return why a resizer cannot be in a graph, and what to do; empty if it can."""
    reason = _REFUSED.get(type(resizer), "")
    if isinstance(resizer, FixedShapeResizer) and resizer.resize not in _RESIZES:
        reason = "fixed_shape_resizer: a graph resizes bilinearly; set resize_method: BILINEAR, and retrain"
    if isinstance(resizer, KeepAspectRatioResizer):
        if not resizer.pad_to_max_dimension:
            reason = (
                "keep_aspect_ratio_resizer without pad_to_max_dimension produces inputs of any size; set "
                "pad_to_max_dimension: true, as TensorFlow's own TF2 models are exported"
            )
        elif resizer.resize not in _RESIZES:
            reason = "keep_aspect_ratio_resizer: a graph resizes bilinearly; set resize_method: BILINEAR, and retrain"
        elif min(resizer.min_dimension, resizer.max_dimension) < 1:
            reason = "keep_aspect_ratio_resizer: a graph needs both min_dimension and max_dimension"
    return reason


# Where in a pixel its value is, by the resizing function.
PIXEL_CENTERS: dict[Any, float] = {resize_bilinear: 0.0, resize_half_pixel: 0.5}
_RESIZES = (*PIXEL_CENTERS, resize_antialiased)
_ANY_SIZE = "{} produces inputs of any size; use fixed_shape_resizer, or keep_aspect_ratio_resizer with padding"
_REFUSED: dict[type, str] = {
    IdentityResizer: _ANY_SIZE.format("identity_resizer"),
    ConditionalShapeResizer: _ANY_SIZE.format("conditional_shape_resizer"),
    PadToMultipleResizer: _ANY_SIZE.format("pad_to_multiple_resizer"),
}
_IN_GRAPH: dict[type, Callable[[Any], nn.Module]] = {
    FixedShapeResizer: Stretch,
    KeepAspectRatioResizer: FitIntoSquare,
}


def resizing(resizer: ImageResizer) -> nn.Module:
    """Return a module from pictures [B, H, W, 3] to `ResizedBatch`; ExportError if a graph cannot hold the resizer."""
    if reason := refuse_resizer(resizer):
        raise ExportError(f"image_resizer: {reason}")
    return _IN_GRAPH[type(resizer)](resizer)
