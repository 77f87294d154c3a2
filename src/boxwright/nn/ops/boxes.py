"""Geometry of boxes, box coders, and the similarities of groundtruth boxes and anchors that matchers compare.

Coders turn boxes into offsets from anchors, and back. Codes keep TensorFlow's order (y before x), so that its trained
heads load unchanged. TensorFlow codes in units of the network's input (0..1). Detectors do so for the coders that
depend on it; for the others pixels give the same codes with less rounding.

Dimensions: B batch, G A N counts of boxes, C columns of the class head, P keypoints. Boxes are xyxy, in any one unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar

import torch
from torch import Tensor

from boxwright.base.device import constants
from boxwright.types import AnchorPredictions

# TF's, in encoding only: added to sides that are divided by, or whose logarithm is taken.
_EPSILON = 1e-8
_LEAST_SIDE = 0.1


class BoxCoder:
    """Encodes boxes relative to anchors.

    Attributes:
        unit_free: Whether codes are independent of the units of x and y, as ratios to the anchor's sides are.
    """

    unit_free: ClassVar[bool] = True

    @property
    def code_size(self) -> int:
        """The length of a code."""
        return 4

    def encode(self, boxes: Tensor, anchors: Tensor) -> Tensor:
        """Return the codes [..., A, code size] of boxes [..., A, 4] relative to anchors [A, 4], xyxy in one unit."""
        raise NotImplementedError

    def decode(self, codes: Tensor, anchors: Tensor) -> Tensor:
        """Return boxes [..., A, 4], xyxy in the anchors' unit, from codes [..., A, code size]; inverts `encode`."""
        raise NotImplementedError


@dataclass(frozen=True)
class FasterRcnnBoxCoder(BoxCoder):
    """Center offsets in units of the anchor and logarithms of size ratios (Faster R-CNN, section 3.1.2).

    Attributes:
        y_scale: Multiplies the offset of the center's y.
        x_scale: Multiplies the offset of the center's x.
        height_scale: Multiplies the logarithm of the heights' ratio.
        width_scale: Multiplies the logarithm of the widths' ratio.
    """

    y_scale: float = 10.0
    x_scale: float = 10.0
    height_scale: float = 5.0
    width_scale: float = 5.0

    def encode(self, boxes: Tensor, anchors: Tensor) -> Tensor:
        """Return [..., A, 4] as ty, tx, th, tw."""
        # Both axes at once, on coordinates adjacent in memory: half the kernel launches on a GPU.
        box_centers, box_sides = _centers_and_sides(boxes)
        anchors = anchors.expand(*(1,) * (boxes.ndim - anchors.ndim), *anchors.shape)
        anchor_centers, anchor_sides = _centers_and_sides(anchors)
        anchor_sides = anchor_sides + _EPSILON
        x, y = (box_centers - anchor_centers) / anchor_sides
        width, height = torch.log((box_sides + _EPSILON) / anchor_sides)
        codes = [y * self.y_scale, x * self.x_scale, height * self.height_scale, width * self.width_scale]
        return torch.stack(codes, dim=-1)

    def decode(self, codes: Tensor, anchors: Tensor) -> Tensor:
        """Return [..., A, 4], xyxy in the unit of the anchors."""
        anchor_x, anchor_y, anchor_w, anchor_h = _center_and_size(anchors)
        ty, tx, th, tw = codes.unbind(-1)
        half_w = torch.exp(tw / self.width_scale) * anchor_w / 2
        half_h = torch.exp(th / self.height_scale) * anchor_h / 2
        x = tx / self.x_scale * anchor_w + anchor_x
        y = ty / self.y_scale * anchor_h + anchor_y
        return torch.stack([x - half_w, y - half_h, x + half_w, y + half_h], dim=-1)


@dataclass(frozen=True)
class PixelCenterBoxCoder(BoxCoder):
    """Faster R-CNN's code of boxes between the centers of their outermost pixels, a pixel smaller (SRN's coder).

    The release codes boxes as if their last pixel were excluded, although it is included: an anchor of 8 × 10 pixels
    has sides of 7 and 9. Boxes outside this coder follow the usual convention. Its unit is pixels, which detectors use
    for unit-free coders.
    """

    coder: FasterRcnnBoxCoder = FasterRcnnBoxCoder(1.0, 1.0, 1.0, 1.0)

    def encode(self, boxes: Tensor, anchors: Tensor) -> Tensor:
        """Return [..., A, 4] as ty, tx, th, tw; sides are at least a tenth of a pixel."""
        least = boxes[..., :2] + _LEAST_SIDE
        ends = torch.maximum(boxes[..., 2:] - 1, least)
        return self.coder.encode(torch.cat([boxes[..., :2], ends], -1), _without_last_pixel(anchors))

    def decode(self, codes: Tensor, anchors: Tensor) -> Tensor:
        """Return [..., A, 4], xyxy in pixels."""
        return _without_last_pixel(self.coder.decode(codes, _without_last_pixel(anchors)), -1.0)


def _without_last_pixel(boxes: Tensor, pixels: float = 1.0) -> Tensor:
    return torch.cat([boxes[..., :2], boxes[..., 2:] - pixels], -1)


@dataclass(frozen=True)
class KeypointBoxCoder(BoxCoder):
    """Faster R-CNN's code, then each keypoint's offset from the anchor's center in units of its size.

    Attributes:
        num_keypoints: Keypoints per object, P.
        y_scale: Multiplies offsets in y, of the center and of keypoints.
        height_scale: Multiplies the logarithm of the heights' ratio.
        width_scale: Multiplies the logarithm of the widths' ratio.
    """

    num_keypoints: int
    y_scale: float = 10.0
    x_scale: float = 10.0
    height_scale: float = 5.0
    width_scale: float = 5.0

    @property
    def code_size(self) -> int:
        """The length of a code: 4 for the box, 2 for each keypoint."""
        return 4 + 2 * self.num_keypoints

    @property
    def boxes(self) -> FasterRcnnBoxCoder:
        """The coder of the box."""
        return FasterRcnnBoxCoder(self.y_scale, self.x_scale, self.height_scale, self.width_scale)

    def encode(self, boxes: Tensor, anchors: Tensor, keypoints: Tensor | None = None) -> Tensor:
        """Return [..., A, 4 + 2 P] as ty, tx, th, tw, ty1, tx1, …; NaN for unknown keypoints."""
        codes = self.boxes.encode(boxes, anchors)
        if keypoints is None:
            keypoints = codes.new_full((*codes.shape[:-1], self.num_keypoints, 2), torch.nan)
        x, y, width, height = (value[..., None] for value in _center_and_size(anchors))
        ty = (keypoints[..., 1] - y) / (height + _EPSILON) * self.y_scale
        tx = (keypoints[..., 0] - x) / (width + _EPSILON) * self.x_scale
        return torch.cat([codes, torch.stack([ty, tx], dim=-1).flatten(-2)], dim=-1)

    def decode(self, codes: Tensor, anchors: Tensor) -> Tensor:
        """Return [..., A, 4], xyxy in the unit of the anchors."""
        return self.boxes.decode(codes[..., :4], anchors)

    def decode_keypoints(self, codes: Tensor, anchors: Tensor) -> Tensor:
        """Return keypoints [..., A, P, 2] as x, y in the anchors' unit, from codes [..., A, 4 + 2 P]."""
        x, y, width, height = (value[..., None] for value in _center_and_size(anchors))
        offsets = codes[..., 4:].reshape(*codes.shape[:-1], self.num_keypoints, 2)
        decoded_x = offsets[..., 1] / self.x_scale * width + x
        decoded_y = offsets[..., 0] / self.y_scale * height + y
        return torch.stack([decoded_x, decoded_y], dim=-1)


@dataclass(frozen=True)
class MeanStddevBoxCoder(BoxCoder):
    """Differences of corners, divided by one standard deviation.

    Attributes:
        stddev: The deviation, in the unit of the boxes.
    """

    unit_free: ClassVar[bool] = False
    stddev: float = 0.01

    def encode(self, boxes: Tensor, anchors: Tensor) -> Tensor:
        """Return [..., A, 4] as the differences of ymin, xmin, ymax, xmax."""
        return ((boxes - anchors) / self.stddev)[..., [1, 0, 3, 2]]

    def decode(self, codes: Tensor, anchors: Tensor) -> Tensor:
        """Return [..., A, 4], xyxy in the unit of the anchors."""
        return codes[..., [1, 0, 3, 2]] * self.stddev + anchors


@dataclass(frozen=True)
class SquareBoxCoder(BoxCoder):
    """Center offsets and the logarithm of one side, with the box replaced by a square of its area.

    Attributes:
        y_scale: Multiplies the offset of the center's y.
        x_scale: Multiplies the offset of the center's x.
        length_scale: Multiplies the logarithm of the sides' ratio.
    """

    # The side mixes x and y.
    unit_free: ClassVar[bool] = False
    y_scale: float = 10.0
    x_scale: float = 10.0
    length_scale: float = 5.0

    @property
    def code_size(self) -> int:
        """The length of a code."""
        return 3

    def encode(self, boxes: Tensor, anchors: Tensor) -> Tensor:
        """Return [..., A, 3] as ty, tx, tl."""
        box_x, box_y, box_w, box_h = _center_and_size(boxes)
        anchor_x, anchor_y, anchor_w, anchor_h = _center_and_size(anchors)
        side = torch.sqrt(anchor_h * anchor_w) + _EPSILON
        return torch.stack(
            [
                (box_y - anchor_y) / side * self.y_scale,
                (box_x - anchor_x) / side * self.x_scale,
                torch.log((torch.sqrt(box_h * box_w) + _EPSILON) / side) * self.length_scale,
            ],
            dim=-1,
        )

    def decode(self, codes: Tensor, anchors: Tensor) -> Tensor:
        """Return [..., A, 4], xyxy in the unit of the anchors."""
        anchor_x, anchor_y, anchor_w, anchor_h = _center_and_size(anchors)
        anchor_side = torch.sqrt(anchor_h * anchor_w)
        ty, tx, tl = codes.unbind(-1)
        half = torch.exp(tl / self.length_scale) * anchor_side / 2
        x = tx / self.x_scale * anchor_side + anchor_x
        y = ty / self.y_scale * anchor_side + anchor_y
        return torch.stack([x - half, y - half, x + half, y + half], dim=-1)


def _centers_and_sides(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the centers and sides of boxes [..., A, 4], each [2, ..., A]: of x, then of y."""
    corners = boxes.movedim(-1, 0).contiguous()
    sides = corners[2:] - corners[:2]
    return corners[:2] + sides / 2, sides


def _center_and_size(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x_min, y_min, x_max, y_max = boxes.unbind(-1)
    width, height = x_max - x_min, y_max - y_min
    return x_min + width / 2, y_min + height / 2, width, height


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
    low, high = boxes.split(2, -1)
    return _multiply_sides(high - low)


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
    # All four sides at once, and split, not sliced: half as many operations, in the backward pass, too.
    (first, high), (low, last) = torch.minimum(boxes, others).split(2, -1), torch.maximum(boxes, others).split(2, -1)
    intersection = _multiply_sides((high - low).clamp(min=0))
    union = box_area(boxes) + box_area(others) - intersection
    return intersection, union, _multiply_sides(last - first)


def _multiply_sides(sides: Tensor) -> Tensor:
    """Return width times height [...] of sides [..., 2]."""
    # The backward pass of `prod` looks for zeros, for which the program waits on a GPU.
    width, height = sides.unbind(-1)
    return width * height


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
