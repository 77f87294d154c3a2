"""Box coders: boxes as offsets from anchors, and back.

Codes keep TensorFlow's order (y before x), so that its trained heads load unchanged. TensorFlow codes in units of the
network's input (0..1). Detectors do so for the coders that depend on it; for the others pixels give the same codes with
less rounding.

Dimensions: A anchors, P keypoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

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
