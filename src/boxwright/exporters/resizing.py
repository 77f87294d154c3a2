"""Resizing inside a graph, where height and width of the pictures are not known when it is made.

A resizer whose result has one size can be in a graph; there it computes by tensors what it otherwise computes by
numbers. What follows the picture's own size cannot: anchors are laid for one size of input.

Dimensions: B batch, H W picture, C channels, S side of a padded square.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from boxwright.base.errors import ExportError
from boxwright.ops.resize import resize_bilinear, resize_half_pixel
from boxwright.preprocessing.image_resizer import (
    ConditionalShapeResizer,
    FixedShapeResizer,
    IdentityResizer,
    ImageResizer,
    KeepAspectRatioResizer,
    PadToMultipleResizer,
    to_grayscale,
)


@dataclass(frozen=True)
class Resized:
    """A batch at the network's size.

    Attributes:
        pixels: float32 [B, H', W', C] in 0..255.
        true_sizes: int64 [B, 2]; the (height, width) in each that is picture and not padding.
    """

    pixels: Tensor
    true_sizes: Tensor


class Stretch(nn.Module):
    """`FixedShapeResizer` of a batch."""

    def __init__(self, resizer: FixedShapeResizer) -> None:
        """Take the resizer."""
        super().__init__()
        self.resizer = resizer

    def forward(self, images: Tensor) -> Resized:
        """Return a batch [B, height, width, C]."""
        size = (self.resizer.height, self.resizer.width)
        pixels = self.resizer.resize(images, *size)
        if self.resizer.convert_to_grayscale:
            pixels = to_grayscale(pixels)
        return Resized(pixels, torch.tensor([size], device=images.device).expand(images.shape[0], 2))


class FitIntoSquare(nn.Module):
    """`KeepAspectRatioResizer` with padding: each new pixel of the whole square looks up its four old ones."""

    def __init__(self, resizer: KeepAspectRatioResizer) -> None:
        """Take the resizer."""
        super().__init__()
        self.resizer = resizer
        self.whole = torch.round if resizer.to_whole is np.rint else torch.floor
        self.centre = PIXEL_CENTRES[resizer.resize]

    def forward(self, images: Tensor) -> Resized:
        """Return a batch [B, S, S, C]; padding is 0, or the resizer's colour."""
        size = self.new_size(images)
        pixels = images.to(torch.float32)
        for axis in (0, 1):
            pixels = _interpolated(pixels, 1 + axis, size[axis], self.resizer.max_dimension, self.centre)
        places = torch.arange(self.resizer.max_dimension, device=images.device)
        inside = (places[:, None] < size[0]) & (places < size[1])
        colour = pixels.new_tensor(self.resizer.per_channel_pad_value or (0.0,))
        pixels = torch.where(inside[..., None], pixels, colour)
        if self.resizer.convert_to_grayscale:
            pixels = to_grayscale(pixels)
        return Resized(pixels, size.to(torch.int64)[None].expand(images.shape[0], 2))

    def new_size(self, images: Tensor) -> Tensor:
        """Return (height, width) before padding, float32 [2], as `KeepAspectRatioResizer.new_size`."""
        sides = torch.stack([_length(images, 1), _length(images, 2)])
        larger = self.whole(sides * (self.resizer.min_dimension / sides.amin(0)))
        limit = float(self.resizer.max_dimension)
        within = self.whole(sides * (limit / sides.amax(0)))
        return torch.where(larger.amax(0) > limit, within, larger).clamp(min=1)


def _length(images: Tensor, dim: int) -> Tensor:
    """Return the length of a side as float32 []."""
    return torch.full((), images.shape[dim], dtype=torch.float32, device=images.device)


def _interpolated(pixels: Tensor, dim: int, size: Tensor, count: int, centre: float) -> Tensor:
    """Resize bilinearly along one dimension; beyond the new size pixels mean nothing.

    Args:
        pixels: float32 [B, H, W, C].
        size: float32 []; the new length.
        count: How many pixels to compute.
        centre: Where in a pixel its value is: 0 as TF has it, 0.5 as others do.

    Returns:
        The same with `count` pixels there.
    """
    length = _length(pixels, dim)
    places = torch.arange(count, dtype=torch.float32, device=pixels.device)
    source = ((places + centre) * (length / size) - centre).clamp(min=0.0)
    low = source.floor().clamp(max=length - 1)
    high = (low + 1).clamp(max=length - 1)
    shape = [1] * pixels.ndim
    shape[dim] = count
    share = (source - source.floor()).view(shape)
    first, second = (pixels.index_select(dim, place.to(torch.int64)) for place in (low, high))
    return first + (second - first) * share


def refuse_resizer(resizer: ImageResizer) -> str:
    """Return why a resizer cannot be in a graph, and what to do; empty where it can."""
    reason = _REFUSED.get(type(resizer), "")
    if isinstance(resizer, FixedShapeResizer) and resizer.resize not in PIXEL_CENTRES:
        reason = "fixed_shape_resizer: a graph resizes bilinearly; set resize_method: BILINEAR, and train so"
    if isinstance(resizer, KeepAspectRatioResizer):
        if not resizer.pad_to_max_dimension:
            reason = (
                "keep_aspect_ratio_resizer without pad_to_max_dimension gives inputs of any size; set "
                "pad_to_max_dimension: true, with which TensorFlow's own TF2 models are exported"
            )
        elif resizer.resize not in PIXEL_CENTRES:
            reason = "keep_aspect_ratio_resizer: a graph resizes bilinearly; set resize_method: BILINEAR, and train so"
        elif min(resizer.min_dimension, resizer.max_dimension) < 1:
            reason = "keep_aspect_ratio_resizer: a graph needs both min_dimension and max_dimension"
    return reason


# Where in a pixel its value is, by how a resizer resizes.
PIXEL_CENTRES: dict[Any, float] = {resize_bilinear: 0.0, resize_half_pixel: 0.5}
_ANY_SIZE = "{} gives inputs of any size; use fixed_shape_resizer, or keep_aspect_ratio_resizer with padding"
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
    """Return a resizer as part of a graph.

    Returns:
        A module from pictures [B, H, W, 3] to `Resized`.

    Raises:
        ExportError: Where it cannot be one, with the reason and what to do.
    """
    if reason := refuse_resizer(resizer):
        raise ExportError(f"image_resizer: {reason}")
    return _IN_GRAPH[type(resizer)](resizer)
