"""Boxes moved at random, on the device (TF's `random_jitter_boxes`; `data/augmentation/labels.py` has it for records).

Dimensions: B batch, N boxes of an image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Given draws of 0..1 and the room around each box, both [B, N, 4] as y_min, x_min, y_max, x_max, and the ratio, returns
# how far each edge moves outward, in units of the box's own height and width.
Draw = Callable[[Tensor, Tensor, float], Tensor]


def _free(drawn: Tensor, room: Tensor, ratio: float) -> Tensor:
    del room
    return (2 * drawn - 1) * ratio / 2


def _grow(drawn: Tensor, room: Tensor, ratio: float) -> Tensor:
    del room
    return drawn * ratio / 2


def _shrink(drawn: Tensor, room: Tensor, ratio: float) -> Tensor:
    del room
    return -drawn * ratio / 2


def _grow_symmetric(drawn: Tensor, room: Tensor, ratio: float) -> Tensor:
    by_axis = torch.minimum(room[..., :2], room[..., 2:])
    return torch.minimum(drawn[..., :2] * ratio / 2, by_axis).repeat(1, 1, 2)


def _shrink_symmetric(drawn: Tensor, room: Tensor, ratio: float) -> Tensor:
    del room
    return (-drawn[..., :2] * ratio / 2).repeat(1, 1, 2)


def _grow_alike(drawn: Tensor, room: Tensor, ratio: float) -> Tensor:
    return torch.minimum(drawn[..., :1] * ratio / 2, room.amin(-1, keepdim=True)).expand_as(room)


def _shrink_alike(drawn: Tensor, room: Tensor, ratio: float) -> Tensor:
    return (-drawn[..., :1] * ratio / 2).expand_as(room)


JITTERS: dict[str, Draw] = {
    "DEFAULT": _free,
    "EXPAND": _grow,
    "SHRINK": _shrink,
    "EXPAND_SYMMETRIC": _grow_symmetric,
    "SHRINK_SYMMETRIC": _shrink_symmetric,
    "EXPAND_SYMMETRIC_XY": _grow_alike,
    "SHRINK_SYMMETRIC_XY": _shrink_alike,
}


@dataclass(frozen=True)
class RegionJitter:
    """Moves boxes at random.

    Attributes:
        ratio: The most that both edges of an axis move together, in units of the box.
    """

    draw: Draw
    ratio: float

    @torch.no_grad()
    def __call__(self, boxes: Tensor) -> Tensor:
        """Return boxes [B, N, 4], xyxy in 0..1 of the image, moved and clipped to it, by PyTorch's generator."""
        swapped = _swapped(boxes)
        sides = (swapped[..., 2:] - swapped[..., :2]).repeat(1, 1, 2)
        safe = sides.where(sides > 0, 1.0)
        room = torch.cat([swapped[..., :2], 1 - swapped[..., 2:]], dim=-1) / safe
        outward = self.draw(torch.rand_like(boxes), room, self.ratio) * sides
        moved = torch.cat([swapped[..., :2] - outward[..., :2], swapped[..., 2:] + outward[..., 2:]], dim=-1)
        return _swapped(moved.clamp(0, 1))


def _swapped(boxes: Tensor) -> Tensor:
    """Return boxes [..., 4] with x and y exchanged; an index of a list would be copied to the GPU."""
    return torch.cat([boxes[..., :2].flip(-1), boxes[..., 2:].flip(-1)], dim=-1)
