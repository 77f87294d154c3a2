"""Geometry of boxes.

Dimensions: B batch, G A N counts of boxes. Boxes are xyxy, in any one unit.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from boxwright.nn.ops.constants import constants
from boxwright.nn.ops.slices import rows_at_once


def box_area(boxes: Tensor) -> Tensor:
    """Return the area [...] of boxes [..., 4], xyxy; negative or zero for inverted or empty boxes."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def clip_boxes(boxes: Tensor, height: Tensor | float, width: Tensor | float) -> Tensor:
    """Return boxes [..., 4], xyxy, clipped to a window at the origin, whose sides broadcast to [...]."""
    if isinstance(height, Tensor) or isinstance(width, Tensor):
        limit_x, limit_y = (torch.as_tensor(one, dtype=boxes.dtype, device=boxes.device) for one in (width, height))
        limits = torch.stack([limit_x, limit_y, limit_x, limit_y], dim=-1)
    else:
        limits = constants([width, height, width, height], boxes.device, boxes.dtype)
    return torch.minimum(boxes.clamp(min=0), limits)


def normalized(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Return boxes float32 [..., 4] from pixels to 0..1, rounded as in TF: at borders the last bit decides the crop."""
    height, width = 1 / size[0], 1 / size[1]
    return boxes * constants([width, height, width, height], boxes.device)


def pairwise_intersection(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the area of intersection of all pairs.

    Args:
        boxes: [..., G, 4], xyxy.
        others: [..., A, 4], xyxy; leading dimensions broadcast.

    Returns:
        [..., G, A].
    """
    return _intersection(_coordinates(boxes), _coordinates(others))


def pairwise_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the intersection over union of all pairs; 0 for disjoint boxes (and 0/0, as in TF).

    Args:
        boxes: [..., G, 4], xyxy.
        others: [..., A, 4], xyxy; leading dimensions broadcast.

    Returns:
        [..., G, A] in 0..1.
    """
    return _in_slices(_iou, boxes, others)


def pairwise_ioa(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the intersection over the second box's area for all pairs.

    Args:
        boxes: [..., G, 4], xyxy.
        others: [..., A, 4], xyxy; leading dimensions broadcast.

    Returns:
        [..., G, A] in 0..1; 0 for disjoint boxes.
    """
    return _in_slices(_ioa, boxes, others)


def _coordinates(boxes: Tensor) -> Tensor:
    """Return x1, y1, x2 and y2 of boxes [..., 4], as [4, ...], contiguous for vectorized loads."""
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
    """Return a comparison [..., G, A] of all pairs, computed in slices of G if there are many."""
    rows, columns = boxes.shape[-2], others.shape[-2]
    # Not by torch.broadcast_shapes, whose first call imports SymPy.
    empty = boxes.new_empty(*boxes.shape[:-2], 0), others.new_empty(*others.shape[:-2], 0)
    leading = torch.broadcast_tensors(empty[0], empty[1])[0].shape[:-1]
    size = rows_at_once(rows, prod(leading) * columns, boxes.device)
    if size >= rows:
        return compare(boxes, others)
    found = boxes.new_empty(*leading, rows, columns)
    for first in range(0, rows, size):
        part = slice(first, first + size)
        found[..., part, :] = compare(boxes[..., part, :], others)
    return found
