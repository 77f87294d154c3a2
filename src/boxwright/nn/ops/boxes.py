"""Geometry of boxes, and the similarities of groundtruth boxes and anchors that matchers compare.

Dimensions: B batch, G A N counts of boxes, C columns of the class head. Boxes are xyxy, in any one unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod

import torch
from torch import Tensor

from boxwright.base.device import constants
from boxwright.nn.ops.box_coder import BoxCoder
from boxwright.types import AnchorPredictions

Levels = tuple[int, ...] | None


@dataclass(frozen=True)
class RefinedStart:
    """Start from the boxes decoded by the first step: two-step cascaded regression.

    Attributes:
        levels: The levels with refined boxes, by index from the finest, while others keep their anchors (SRN's STR);
            None for all.
    """

    box_coder: BoxCoder
    levels: Levels = None

    def __call__(self, first: AnchorPredictions) -> Tensor:
        """Return float32 [B, A, 4], xyxy in pixels; not clipped."""
        moved = self.box_coder.decode(first.box_codes.detach().float(), first.anchors)
        if self.levels is None:
            return moved
        return torch.where(first.on_levels(self.levels)[:, None], moved, first.anchors)


@dataclass(frozen=True)
class TiledStart:
    """Start from the original anchors: one-step regression."""

    def __call__(self, first: AnchorPredictions) -> Tensor:
        """Return the same anchors."""
        return first.anchors


StartRule = RefinedStart | TiledStart


@dataclass(frozen=True)
class AnchorFilter:
    """Negative anchor filtering: drop anchors that confidently hold no object.

    Attributes:
        objectness_threshold: The minimum probability of an object, 1 - θ; 0 drops none.
        to_scores: Converts the first step's logits [B, A, C] to probabilities.
        background: Columns before the classes, of which the most likely counts.
        levels: The levels that are filtered, by index from the finest (SRN's STC); None for all.
    """

    objectness_threshold: float
    to_scores: Callable[[Tensor], Tensor]
    background: int = 1
    levels: Levels = None

    def __call__(self, first: AnchorPredictions) -> Tensor:
        """Return which anchors are dropped, bool [B, A]."""
        scores = self.to_scores(first.class_logits.detach().float())
        left_out = scores[..., self.background :].amax(-1) < self.objectness_threshold
        return left_out if self.levels is None else left_out & first.on_levels(self.levels)


@dataclass(frozen=True)
class SecondStep:
    """The boxes and anchors of a second step.

    Attributes:
        filter: Selects the anchors to drop; None for none.
    """

    start: StartRule
    filter: AnchorFilter | None = None

    def __call__(self, first: AnchorPredictions) -> tuple[Tensor, Tensor | None]:
        """Return anchors [B, A, 4] or [A, 4], xyxy in pixels, and which are dropped, [B, A], without gradient."""
        return self.start(first), None if self.filter is None else self.filter(first)


# The maximum number of slices, so that each intermediate tensor has at most a tenth of the result's size.
_MOST_SLICES = 10
# The minimum numbers per slice: on a CPU they stay in caches, on a GPU they are worth a kernel launch.
_LEAST_ON_CPU, _LEAST_ON_GPU = 1 << 21, 1 << 23


def rows_at_once(rows: int, numbers: int, device: torch.device) -> int:
    """Return how many rows of `numbers` numbers each to compute at a time; at least 1."""
    if torch.compiler.is_compiling():  # a compiler fuses the computation, without intermediate tensors
        return max(rows, 1)
    least = _LEAST_ON_CPU if device.type == "cpu" else _LEAST_ON_GPU
    return max(ceil(rows / _MOST_SLICES), least // max(numbers, 1), 1)


def box_area(boxes: Tensor) -> Tensor:
    """Return the area [...] of boxes [..., 4], xyxy; negative or zero for inverted or empty boxes."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def clip_boxes(boxes: Tensor, height: Tensor | float, width: Tensor | float) -> Tensor:
    """Return boxes [..., 4], xyxy, clipped to a window at the origin, whose sides broadcast to [...]."""
    if isinstance(height, Tensor) or isinstance(width, Tensor):
        limit_x, limit_y = (torch.as_tensor(limit, dtype=boxes.dtype, device=boxes.device) for limit in (width, height))
        limits = torch.stack([limit_x, limit_y, limit_x, limit_y], dim=-1)
    else:
        limits = constants([width, height, width, height], boxes.device, boxes.dtype)
    return torch.minimum(boxes.clamp(min=0), limits)


def normalized(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Return boxes float32 [..., 4] from pixels to 0..1, rounded as in TF: at borders the last bit decides the crop."""
    height, width = 1 / size[0], 1 / size[1]
    return boxes * constants([width, height, width, height], boxes.device)


def to_corners(boxes: Tensor) -> Tensor:
    """Return xyxy [..., 4] of center x, center y, width, height; a negative width or height counts as 0."""
    half = boxes[..., 2:].clamp(min=0) / 2
    return torch.cat([boxes[..., :2] - half, boxes[..., :2] + half], -1)


def from_corners(corners: Tensor) -> Tensor:
    """Return center x, center y, width, height [..., 4] of xyxy."""
    low, high = corners[..., :2], corners[..., 2:]
    return torch.cat([(low + high) / 2, high - low], -1)


def compute_overlaps(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the areas of intersection, union and hull of boxes [..., 4], which broadcast."""
    low, high = torch.maximum(boxes[..., :2], others[..., :2]), torch.minimum(boxes[..., 2:], others[..., 2:])
    intersection = (high - low).clamp(min=0).prod(-1)
    union = box_area(boxes) + box_area(others) - intersection
    first, last = torch.minimum(boxes[..., :2], others[..., :2]), torch.maximum(boxes[..., 2:], others[..., 2:])
    return intersection, union, (last - first).prod(-1)


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
    compared = boxes.new_empty(*leading, rows, columns)
    for first in range(0, rows, size):
        part = slice(first, first + size)
        compared[..., part, :] = compare(boxes[..., part, :], others)
    return compared


# Boxes [B, G, 4] and anchors [A, 4] to [B, G, A]; larger is more similar.
Similarity = Callable[[Tensor, Tensor], Tensor]


def negative_squared_distance(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the negative squared distance of all pairs over the four coordinates.

    Args:
        boxes: [..., G, 4], xyxy.
        others: [..., A, 4], xyxy; leading dimensions broadcast.

    Returns:
        [..., G, A], at most 0.
    """
    return -(boxes[..., :, None, :] - others[..., None, :, :]).square().sum(-1)


@dataclass(frozen=True)
class ThresholdedIou:
    """1 for pairs that overlap enough, else 0.

    TF returns the groundtruth box's score, which is 1 for every object except those of the first class of a detector
    without background column, where it is 0; here it is 1 for all.

    Attributes:
        iou_threshold: The overlap that a pair must exceed.
    """

    iou_threshold: float = 0.5

    def __call__(self, boxes: Tensor, others: Tensor) -> Tensor:
        """Return float [..., G, A] of 0 and 1."""
        return (pairwise_iou(boxes, others) > self.iou_threshold).to(torch.float32)
