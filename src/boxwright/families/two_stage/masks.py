"""Pasting instance masks from their boxes into the image.

Dimensions: D masks, K classes, h w mask within its box, H W image.
"""

from __future__ import annotations

import torch
from torch import Tensor

from boxwright.nn.ops.roi import Size, Taps, corners, taps

# TF's clamp, without which the mask of an empty box would divide by 0.
_LEAST_SIDE = 1e-4  # of a box, in 0..1 of the image


def reframe_masks(masks: Tensor, boxes: Tensor, size: Size, *, nearest: bool = False) -> Tensor:
    """Return masks pasted into the image, float32 [D, H, W], as TF's `reframe_box_masks_to_image_masks`.

    The centers of a mask's corner pixels lie on the box's corners; pixels outside the boxes are 0.

    Args:
        masks: float32 [D, h, w].
        boxes: float32 [D, 4], xyxy in 0..1 of the image.
        nearest: Whether a pixel takes the nearest value instead of an interpolated one.
    """
    rows, columns = _axes(boxes, (masks.shape[1], masks.shape[2]), size, nearest=nearest)
    return _matrix(rows, masks.shape[1]) @ masks @ _matrix(columns, masks.shape[2]).transpose(1, 2)


def masks_of_classes(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the masks [..., h, w] of labels int64 [...], 0-based, from logits [..., K or 1, h, w]."""
    if logits.shape[-3] == 1:
        return logits.squeeze(-3)
    index = labels[..., None, None, None].expand(*labels.shape, 1, *logits.shape[-2:])
    return torch.gather(logits, logits.ndim - 3, index).squeeze(-3)


def _axes(boxes: Tensor, mask_size: Size, size: Size, *, nearest: bool) -> tuple[Taps, Taps]:
    """Return the taps of an image's rows and columns in each mask."""
    axes = []
    for side, extent, count in zip((1, 0), mask_size, size, strict=True):
        start = boxes[:, side]
        length = (boxes[:, side + 2] - start).clamp(min=_LEAST_SIDE)
        extents = torch.full((len(boxes),), extent, device=boxes.device)
        positions = corners((0 - start) / length, (1 - start) / length, extents - 1, count)
        axes.append(taps(positions, extents, border="drop", nearest=nearest))
    return axes[0], axes[1]


def _matrix(axis: Taps, extent: int) -> Tensor:
    """Return taps as matrices [D, n, extent]."""
    matrix = axis.weights.new_zeros(*axis.weights.shape[:2], extent)
    return matrix.scatter_add_(2, axis.places, axis.weights)
