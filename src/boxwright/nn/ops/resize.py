"""Resizing with TensorFlow's arithmetic.

The TF Object Detection API resizes with `tf.compat.v1.image.resize`: source coordinate = destination × (input /
output), with no half-pixel shift and no antialiasing; or, with aligned corners, × (input - 1) / (output - 1). The
half-pixel difference of other libraries moves every feature of a small object.

Dimensions: B batch, H W image, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_CUBIC_STEPS = 1024
_CUBIC_A = -0.75


def resize_bilinear(image: Tensor, height: int, width: int, *, align_corners: bool = False) -> Tensor:
    """Return a bilinearly resized image, as `tf.compat.v1.image.resize_bilinear`.

    Args:
        image: [..., H, W, C], of any dtype.
        align_corners: Whether the centers of corner pixels stay in place.

    Returns:
        float32 [..., height, width, C].
    """
    # A graph accepts any size.
    if not torch.compiler.is_compiling() and image.shape[-3:-1] == (height, width):
        return image.float()
    images = image.reshape(-1, *image.shape[-3:])
    if align_corners:
        pixels = images.float().permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        resized = F.interpolate(pixels, (height, width), mode="bilinear", align_corners=True)
    else:
        # With one more pixel each, aligned corners give the same source coordinates; the extra pixel repeats the edge.
        pixels = _with_edge_repeated(images, torch.float32).permute(0, 3, 1, 2)
        resized = F.interpolate(pixels, (height + 1, width + 1), mode="bilinear", align_corners=True)[..., :-1, :-1]
    return resized.reshape(*image.shape[:-3], *resized.shape[1:]).movedim(-3, -1)


def resize_bilinear_to_levels(image: Tensor, height: int, width: int, *, align_corners: bool = False) -> Tensor:
    """Return `resize_bilinear`'s result in whole levels, within one of it; on a CPU in a third of the time.

    Args:
        image: uint8 [..., H, W, C].

    Returns:
        uint8 [..., height, width, C].
    """
    del align_corners
    if image.shape[-3:-1] == (height, width):
        return image
    pixels = _with_edge_repeated(image.reshape(-1, *image.shape[-3:]), torch.uint8).permute(0, 3, 1, 2)
    resized = F.interpolate(pixels, (height + 1, width + 1), mode="bilinear", align_corners=True)[..., :-1, :-1]
    return resized.reshape(*image.shape[:-3], *resized.shape[1:]).movedim(-3, -1)


def _with_edge_repeated(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Return images [B, H, W, C] of a type with their last row and column twice, [B, H + 1, W + 1, C]."""
    batch, height, width, channels = images.shape
    if torch.compiler.is_compiling():
        padded = F.pad(images.to(dtype).permute(0, 3, 1, 2), (0, 1, 0, 1), mode="replicate")
        return padded.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
    # Written where it goes: padding took six times as long, as it leaves the order of images in memory.
    whole = torch.empty(batch, height + 1, width + 1, channels, dtype=dtype, device=images.device)
    whole[:, :height, :width] = images
    whole[:, height, :width] = images[:, -1]
    whole[:, :, width] = whole[:, :, width - 1]
    return whole


def resize_half_pixel(image: Tensor, height: int, width: int, *, align_corners: bool = False) -> Tensor:
    """Return an image bilinearly resized with half-pixel centers, as in most other systems, without antialiasing.

    Args:
        image: [..., H, W, C], of any dtype.

    Returns:
        float32 [..., height, width, C].
    """
    del align_corners
    return _interpolated(image, height, width, antialias=False)


def resize_antialiased(image: Tensor, height: int, width: int, *, align_corners: bool = False) -> Tensor:
    """Return an image resized as by Pillow's bilinear filter: where it shrinks, all covered pixels are weighed.

    Args:
        image: [..., H, W, C], of any dtype.

    Returns:
        float32 [..., height, width, C].
    """
    del align_corners
    return _interpolated(image, height, width, antialias=True)


def resize_half_pixel_to_levels(image: Tensor, height: int, width: int, *, align_corners: bool = False) -> Tensor:
    """Return `resize_half_pixel`'s result in whole levels, within one of it; on a CPU in a fraction of the time.

    Args:
        image: uint8 [..., H, W, C].

    Returns:
        uint8 [..., height, width, C].
    """
    del align_corners
    return _interpolated_levels(image, height, width, antialias=False)


def resize_antialiased_to_levels(image: Tensor, height: int, width: int, *, align_corners: bool = False) -> Tensor:
    """Return `resize_antialiased`'s result in whole levels, within one of it; on a CPU in a quarter of the time.

    Args:
        image: uint8 [..., H, W, C].

    Returns:
        uint8 [..., height, width, C].
    """
    del align_corners
    return _interpolated_levels(image, height, width, antialias=True)


def _interpolated_levels(image: Tensor, height: int, width: int, *, antialias: bool) -> Tensor:
    # A batch before channels are moved: of a single image, PyTorch's fast kernel of bytes, whose channels are last in
    # memory, is recognized by the stride of the batch.
    pixels = image.reshape(-1, *image.shape[-3:]).permute(0, 3, 1, 2)
    resized = F.interpolate(pixels, (height, width), mode="bilinear", align_corners=False, antialias=antialias)
    return resized.reshape(*image.shape[:-3], *resized.shape[1:]).movedim(-3, -1)


# Of uint8 images, an interpolation and the one whose results are its in whole levels.
TO_LEVELS = {
    resize_antialiased: resize_antialiased_to_levels,
    resize_bilinear: resize_bilinear_to_levels,
    resize_half_pixel: resize_half_pixel_to_levels,
}


def _interpolated(image: Tensor, height: int, width: int, *, antialias: bool) -> Tensor:
    """Return an image [..., H, W, C] resized by PyTorch's own function: float32 [..., height, width, C]."""
    pixels = image.float().movedim(-1, -3)
    whole = pixels.reshape(-1, *pixels.shape[-3:])
    resized = F.interpolate(whole, (height, width), mode="bilinear", align_corners=False, antialias=antialias)
    return resized.view(*pixels.shape[:-2], height, width).movedim(-3, -1)


def _source(image: Tensor, dim: int, size: int, *, align_corners: bool) -> Tensor:
    """Return the source coordinates of new pixels, float32 [size]."""
    length = image.shape[dim]
    scale = (length - 1) / (size - 1) if align_corners and size > 1 else length / size
    places = torch.arange(size, dtype=torch.float32, device=image.device)
    return places * torch.tensor(scale, dtype=torch.float32, device=image.device)


def resize_nearest(image: Tensor, height: int, width: int, *, align_corners: bool = False) -> Tensor:
    """Return an image resized as by `tf.compat.v1.image.resize_nearest_neighbor`, which takes the next lower pixel.

    Args:
        image: [..., H, W, C].
        align_corners: Whether corners stay in place; the nearest pixel is then taken, rounding half up.

    Returns:
        [..., height, width, C] of the same dtype.
    """
    for dim, size in ((-3, height), (-2, width)):
        source = _source(image, dim, size, align_corners=align_corners)
        picked = (source + 0.5 if align_corners else source).floor().long()
        image = image.index_select(dim, picked.clamp_(max=image.shape[dim] - 1))
    return image


def resize_bicubic(image: Tensor, height: int, width: int, *, align_corners: bool = False) -> Tensor:
    """Return a bicubically resized image, as `tf.compat.v1.image.resize_bicubic`.

    Keys's cubic with a = -0.75, coefficients in a table of 1024 steps, and edge pixels repeated.
    The result may overshoot the range of the image.

    Args:
        image: [..., H, W, C], of any dtype.
        align_corners: Whether the centers of corner pixels stay in place.

    Returns:
        float32 [..., height, width, C].
    """
    if image.shape[-3:-1] == (height, width):
        return image.float()
    for dim, size in ((-3, height), (-2, width)):
        length, source = image.shape[dim], _source(image, dim, size, align_corners=align_corners)
        base = source.floor()
        step = ((source - base) * _CUBIC_STEPS).round() / _CUBIC_STEPS
        shape = [1] * image.ndim
        shape[dim] = size
        total = torch.zeros((), device=image.device)
        for shift in (-1, 0, 1, 2):
            pixels = image.index_select(dim, (base.long() + shift).clamp(0, length - 1)).float()
            total = total + pixels * _cubic((step - shift).abs()).reshape(shape)
        image = total
    return image


def _cubic(distance: Tensor) -> Tensor:
    """Return a pixel's weight at a distance of 0 to 2 (Keys, 1981, equation 4)."""
    a, x = _CUBIC_A, distance
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, far)


def resize_area(image: Tensor, height: int, width: int, *, align_corners: bool = False) -> Tensor:
    """Return an image resized by averaging covered pixels, as `tf.compat.v1.image.resize_area`.

    Args:
        image: [..., H, W, C], of any dtype.
        align_corners: Whether a new pixel covers (input - 1) / (output - 1) old ones.

    Returns:
        float32 [..., height, width, C].
    """
    result = image.float()
    if image.shape[-3:-1] == (height, width):
        return result
    for dim, size in ((-3, height), (-2, width)):
        length = result.shape[dim]
        scale = (length - 1) / (size - 1) if align_corners and size > 1 else length / size
        shares = _coverage(length, size, scale).to(result)
        result = torch.tensordot(shares, result, dims=([1], [result.ndim + dim])).movedim(0, dim)
    return result


def _coverage(length: int, size: int, scale: float) -> Tensor:
    """Return the fraction of each new pixel that each old one covers, [size, length]; edge pixels extend outward."""
    start = torch.arange(size, dtype=torch.float64)[:, None] * scale
    pixels = torch.arange(length, dtype=torch.float64)
    right = torch.where(pixels == length - 1, torch.inf, pixels + 1)
    overlap = torch.minimum(start + scale, right) - torch.maximum(start, pixels)
    return overlap.clamp(min=0) / scale
