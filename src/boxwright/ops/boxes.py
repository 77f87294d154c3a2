"""Geometry of boxes.

Dimensions: B batch, G A N counts of boxes. Boxes are xyxy, in any one unit.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from boxwright.ops.constants import constants
from boxwright.ops.slices import rows_at_once


def box_area(boxes: Tensor) -> Tensor:
    """Return the area of each box.

    Args:
        boxes: [..., 4], xyxy.

    Returns:
        [...]; negative or zero where the box is turned inside out or empty.
    """
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def clip_boxes(boxes: Tensor, height: Tensor | float, width: Tensor | float) -> Tensor:
    """Clip boxes to a window that starts at the origin.

    Args:
        boxes: [..., 4], xyxy.
        height: The window's height, broadcastable to [...].
        width: The window's width, broadcastable to [...].

    Returns:
        [..., 4]; a box outside the window has no area left.
    """
    if isinstance(height, Tensor) or isinstance(width, Tensor):
        limit_x, limit_y = (torch.as_tensor(one, dtype=boxes.dtype, device=boxes.device) for one in (width, height))
        limits = torch.stack([limit_x, limit_y, limit_x, limit_y], dim=-1)
    else:
        limits = constants([width, height, width, height], boxes.device, boxes.dtype)
    return torch.minimum(boxes.clamp(min=0), limits)


def normalized(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Return boxes in 0..1 of an image, rounded as TF rounds them: at the border the last bit decides what is cropped.

    Args:
        boxes: float32 [..., 4], xyxy in pixels.

    Returns:
        float32 [..., 4].
    """
    height, width = 1 / size[0], 1 / size[1]
    return boxes * constants([width, height, width, height], boxes.device)


def pairwise_intersection(boxes: Tensor, others: Tensor) -> Tensor:
    """Area of intersection of all pairs.

    Args:
        boxes: [..., G, 4], xyxy.
        others: [..., A, 4], xyxy; leading dimensions broadcast.

    Returns:
        [..., G, A].
    """
    return _intersection(_coordinates(boxes), _coordinates(others))


def pairwise_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of all pairs; 0 where the boxes do not meet (TF's rule for 0/0 too).

    Args:
        boxes: [..., G, 4], xyxy.
        others: [..., A, 4], xyxy; leading dimensions broadcast.

    Returns:
        [..., G, A] in 0..1.
    """
    return _in_slices(_iou, boxes, others)


def pairwise_ioa(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over the area of the second box, of all pairs.

    Args:
        boxes: [..., G, 4], xyxy.
        others: [..., A, 4], xyxy; leading dimensions broadcast.

    Returns:
        [..., G, A] in 0..1; 0 where the boxes do not meet.
    """
    return _in_slices(_ioa, boxes, others)


def _coordinates(boxes: Tensor) -> Tensor:
    """Return x1, y1, x2 and y2 of boxes [..., 4], as [4, ...]: a strided one cannot be loaded eight at a time."""
    return boxes.movedim(-1, 0).contiguous()


def _intersection(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the areas of intersection [..., G, A] of coordinates [4, ..., G] and [4, ..., A]."""
    x1, y1, x2, y2 = boxes[..., :, None]
    left, top, right, bottom = others[..., None, :]
    width = torch.minimum(x2, right).sub_(torch.maximum(x1, left)).clamp_(min=0)
    height = torch.minimum(y2, bottom).sub_(torch.maximum(y1, top)).clamp_(min=0)
    return width.mul_(height)


def _areas(coordinates: Tensor) -> Tensor:
    sides = coordinates[2:] - coordinates[:2]
    return sides[0] * sides[1]


def _iou(boxes: Tensor, others: Tensor) -> Tensor:
    boxes, others = _coordinates(boxes), _coordinates(others)
    intersection = _intersection(boxes, others)
    union = (_areas(boxes)[..., :, None] + _areas(others)[..., None, :]).sub_(intersection)
    apart = (intersection > 0).logical_not_()
    return intersection.div_(union).masked_fill_(apart, 0.0)


def _ioa(boxes: Tensor, others: Tensor) -> Tensor:
    boxes, others = _coordinates(boxes), _coordinates(others)
    intersection = _intersection(boxes, others)
    apart = (intersection > 0).logical_not_()
    return intersection.div_(_areas(others)[..., None, :]).masked_fill_(apart, 0.0)


def _in_slices(compare: Callable[[Tensor, Tensor], Tensor], boxes: Tensor, others: Tensor) -> Tensor:
    """Return what a comparison [..., G, A] gives; of many pairs, some rows of G at a time."""
    rows, columns = boxes.shape[-2], others.shape[-2]
    leading = torch.broadcast_shapes(boxes.shape[:-2], others.shape[:-2])  # type: ignore[no-untyped-call]  # torch's
    size = rows_at_once(rows, prod(leading) * columns, boxes.device)
    if size >= rows:
        return compare(boxes, others)
    found = boxes.new_empty(*leading, rows, columns)
    for first in range(0, rows, size):
        part = slice(first, first + size)
        found[..., part, :] = compare(boxes[..., part, :], others)
    return found
