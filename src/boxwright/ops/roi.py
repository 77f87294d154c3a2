"""Cropping regions out of feature maps, with TensorFlow's arithmetic.

Dimensions: B batch, R regions of an image, C channels, H W feature map, h w crop, L levels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["crop_and_resize", "multilevel_crop_and_resize", "multilevel_roi_align"]

Size = tuple[int, int]


def crop_and_resize(features: Tensor, boxes: Tensor, crop_size: Size) -> Tensor:
    """Sample each region at a grid whose corners are the region's, as `tf.image.crop_and_resize`.

    Args:
        features: float [B, C, H, W].
        boxes: float [B, R, 4], xyxy in units of the map (0..1 spans the centres of its corner pixels).
        crop_size: (h, w).

    Returns:
        float [B, R, C, h, w]; 0 where a sample lies outside the map.
    """
    height, width = features.shape[-2:]
    y = _aligned_grid(boxes[..., 1], boxes[..., 3], crop_size[0]) * (height - 1)
    x = _aligned_grid(boxes[..., 0], boxes[..., 2], crop_size[1]) * (width - 1)
    return _sample(features, y, x)


def multilevel_crop_and_resize(features: Sequence[Tensor], boxes: Tensor, levels: Tensor, crop_size: Size) -> Tensor:
    """Crop each region from the map of its level by `crop_and_resize`.

    Args:
        features: L maps, float [B, C, H, W] each.
        boxes: float [B, R, 4], xyxy in 0..1.
        levels: int64 [B, R] in 0..L-1.
        crop_size: (h, w).

    Returns:
        float [B, R, C, h, w].
    """
    return _by_level([crop_and_resize(level, boxes, crop_size) for level in features], levels)


def multilevel_roi_align(features: Sequence[Tensor], boxes: Tensor, levels: Tensor, crop_size: Size) -> Tensor:
    """Crop each region from the map of its level, sampled at the centres of a grid's cells (ROIAlign).

    Args:
        features: L maps, float [B, C, H, W] each.
        boxes: float [B, R, 4], xyxy in units of the map (0..1 spans the centres of its corner pixels).
        levels: int64 [B, R] in 0..L-1.
        crop_size: (h, w).

    Returns:
        float [B, R, C, h, w]; 0 where a sample lies outside the map.
    """
    crops = []
    for level in features:
        height, width = level.shape[-2:]
        y = _centred_grid(boxes[..., 1], boxes[..., 3], crop_size[0]) * (height - 1)
        x = _centred_grid(boxes[..., 0], boxes[..., 2], crop_size[1]) * (width - 1)
        crops.append(_sample(level, y, x))
    return _by_level(crops, levels)


def _by_level(crops: Sequence[Tensor], levels: Tensor) -> Tensor:
    index = levels[None, ..., None, None, None].long().expand(1, *crops[0].shape)
    return torch.stack(list(crops)).gather(0, index).squeeze(0)


def _aligned_grid(start: Tensor, end: Tensor, size: int) -> Tensor:
    """Lay [..., size] points from start to end; one point lies in the middle."""
    if size == 1:
        return ((start + end) / 2)[..., None]
    steps = torch.linspace(0, 1, size, device=start.device)
    return start[..., None] + (end - start)[..., None] * steps


def _centred_grid(start: Tensor, end: Tensor, size: int) -> Tensor:
    """Lay [..., size] points at the centres of equal cells between start and end."""
    steps = (torch.arange(size, device=start.device) + 0.5) / size
    return start[..., None] + (end - start)[..., None] * steps


def _sample(features: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Sample maps [B, C, H, W] bilinearly at y [B, R, h] × x [B, R, w]; 0 outside."""
    height, width = features.shape[-2:]
    inside = ((y >= 0) & (y <= height - 1))[..., :, None] & ((x >= 0) & (x <= width - 1))[..., None, :]
    top, left = y.floor().clamp(0, height - 1), x.floor().clamp(0, width - 1)
    share_y, share_x = (y - top)[:, None, ..., :, None], (x - left)[:, None, ..., None, :]
    rows = [top.long(), (top.long() + 1).clamp(max=height - 1)]
    columns = [left.long(), (left.long() + 1).clamp(max=width - 1)]
    batch, channels = features.shape[:2]
    flat = features.flatten(2)

    def corner(row: Tensor, column: Tensor) -> Tensor:
        place = row[..., :, None] * width + column[..., None, :]
        picked = flat.gather(2, place.flatten(1)[:, None].expand(-1, channels, -1))
        return picked.view(batch, channels, *place.shape[1:])

    upper = torch.lerp(corner(rows[0], columns[0]), corner(rows[0], columns[1]), share_x)
    lower = torch.lerp(corner(rows[1], columns[0]), corner(rows[1], columns[1]), share_x)
    crops = torch.lerp(upper, lower, share_y) * inside[:, None]
    return crops.movedim(1, 2)
