"""Resizing with TensorFlow's arithmetic.

The TF Object Detection API resizes with `tf.compat.v1.image.resize`: source coordinate =
destination × (input / output), with no half-pixel shift and no antialiasing. Off-by-half
differences from other libraries move every feature of a small object.

Dimensions: B batch, H W image, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["resize_bilinear", "resize_nearest"]


def resize_bilinear(image: Tensor, height: int, width: int) -> Tensor:
    """Resize bilinearly, as `tf.compat.v1.image.resize_bilinear(align_corners=False)`.

    Args:
        image: [..., H, W, C], of any dtype.
        height: The new height.
        width: The new width.

    Returns:
        float32 [..., height, width, C].
    """
    if image.shape[-3:-1] == (height, width):
        return image.float()
    return _interpolate(_interpolate(image, -3, height), -2, width)


def _interpolate(image: Tensor, dim: int, size: int) -> Tensor:
    length = image.shape[dim]
    source = torch.arange(size, dtype=torch.float32, device=image.device) * (length / size)
    lower = source.floor().long().clamp_(max=length - 1)
    upper = (lower + 1).clamp_(max=length - 1)
    shape = [1] * image.ndim
    shape[dim] = size
    fraction = (source - lower).reshape(shape)
    # Rows and columns are picked before they become floats: a quarter of the bytes to move.
    low = image.index_select(dim, lower).float()
    if length % size == 0:
        return low
    return torch.lerp(low, image.index_select(dim, upper).float(), fraction)


def resize_nearest(image: Tensor, height: int, width: int) -> Tensor:
    """Take the nearest lower pixel, as `tf.compat.v1.image.resize_nearest_neighbor`.

    Args:
        image: [..., H, W, C].
        height: The new height.
        width: The new width.

    Returns:
        [..., height, width, C] of the same dtype.
    """
    for dim, size in ((-3, height), (-2, width)):
        length = image.shape[dim]
        source = torch.arange(size, dtype=torch.float32, device=image.device) * (length / size)
        image = image.index_select(dim, source.floor().long().clamp_(max=length - 1))
    return image
