"""Resizing with TensorFlow's arithmetic.

The TF Object Detection API resizes with `tf.compat.v1.image.resize`: source coordinate =
destination × (input / output), with no half-pixel shift and no antialiasing. Off-by-half
differences from other libraries move every feature of a small object.

Dimensions: B batch, H W image, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["resize_area", "resize_bicubic", "resize_bilinear", "resize_nearest"]


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


def resize_bicubic(image: Tensor, height: int, width: int) -> Tensor:
    """Resize bicubically, as `tf.compat.v1.image.resize_bicubic(align_corners=False)`.

    Keys's cubic with a = -0.75, coefficients taken from a table of 1024 steps, and edge pixels
    repeated. The result may overshoot the range of the image.

    Args:
        image: [..., H, W, C], of any dtype.
        height: The new height.
        width: The new width.

    Returns:
        float32 [..., height, width, C].
    """
    for dim, size in ((-3, height), (-2, width)):
        length = image.shape[dim]
        source = torch.arange(size, dtype=torch.float32, device=image.device) * (length / size)
        base = source.floor()
        fraction = ((source - base) * _CUBIC_STEPS).round() / _CUBIC_STEPS
        weights = [_cubic(fraction + 1), _cubic(fraction), _cubic(1 - fraction), _cubic(2 - fraction)]
        shape = [1] * image.ndim
        shape[dim] = size
        total: Tensor | None = None
        for shift, weight in enumerate(weights, start=-1):
            pixels = image.index_select(dim, (base.long() + shift).clamp(0, length - 1)).float()
            term = pixels * weight.reshape(shape)
            total = term if total is None else total + term
        image = image.float() if total is None else total
    return image.float()


_CUBIC_STEPS = 1024
_CUBIC_A = -0.75


def _cubic(distance: Tensor) -> Tensor:
    """Weigh a pixel by its distance, 0 to 2 (Keys, 1981)."""
    a, x = _CUBIC_A, distance
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, far)


def resize_area(image: Tensor, height: int, width: int) -> Tensor:
    """Average the pixels that each new pixel covers, as `tf.compat.v1.image.resize_area`.

    Args:
        image: [..., H, W, C], of any dtype.
        height: The new height.
        width: The new width.

    Returns:
        float32 [..., height, width, C].
    """
    result = image.float()
    for dim, size in ((-3, height), (-2, width)):
        shares = _coverage(result.shape[dim], size).to(result)
        result = torch.tensordot(shares, result, dims=([1], [result.ndim + dim])).movedim(0, dim)
    return result


def _coverage(length: int, size: int) -> Tensor:
    """Tell which share of each new pixel each old one is, [size, length]."""
    edges = torch.arange(size + 1, dtype=torch.float64) * (length / size)
    pixels = torch.arange(length, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], pixels + 1) - torch.maximum(edges[:-1, None], pixels)
    overlap = overlap.clamp(min=0)
    return overlap / overlap.sum(1, keepdim=True)
