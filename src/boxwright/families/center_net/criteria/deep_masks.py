"""The task of DeepMAC's masks (TF's `DeepMACMetaArch.loss`).

Boxes moved at random, on the device (TF's `random_jitter_boxes`; `data/augmentation/labels.py` has it for records).

Dimensions: B batch, G objects (padded), h w mask, N boxes of an image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.families.center_net.criteria.deep_mask_losses import DeepMaskLoss, MaskSupervision
from boxwright.families.center_net.predictions import DeepMaskPredictions
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.ops.boxes import normalized
from boxwright.nn.ops.constants import constants
from boxwright.types import Targets

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


# Given boxes [B, G, 4] in 0..1, returns them moved at random.
Jitter = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DeepMaskTerm:
    """One of the losses.

    Attributes:
        name: In TF's `Loss/…`.
        labels: Of the classes whose objects it learns from; None for all.
    """

    name: str
    weight: float
    loss: DeepMaskLoss
    labels: tuple[int, ...] | None = None


@dataclass(frozen=True)
class DeepMaskTask:
    """The losses of masks, each divided by the weights of the objects that it learns from.

    Attributes:
        jitter: Moves boxes in training, before the groundtruth is cropped; None for not.
    """

    terms: tuple[DeepMaskTerm, ...]
    jitter: Jitter | None = None

    def __call__(self, masks: DeepMaskPredictions, targets: Targets, size: tuple[int, int]) -> dict[str, LossTerm]:
        """Return the terms, averaged over stages.

        Args:
            size: Of the grid, in pixels.
        """
        if not masks.of_objects:
            raise ValueError("the network has not been given the groundtruth, and so predicted no masks of it")
        boxes = normalized(targets.boxes, size)
        views = masks.of_views or (None,) * len(masks.of_objects)
        totals: dict[str, list[Tensor]] = {term.name: [] for term in self.terms}
        weights = {term.name: _weights(targets, term.labels) for term in self.terms}
        for logits, view in zip(masks.of_objects, views, strict=True):
            regions = boxes if self.jitter is None or masks.step is None else self.jitter(boxes)
            given = MaskSupervision(boxes, regions, targets, size, view, masks.features, masks.step)
            for term in self.terms:
                totals[term.name].append((term.loss(logits.float(), given) * weights[term.name]).sum())
        return {
            f"Loss/{term.name}": LossTerm(term.weight * torch.stack(totals[term.name]).mean(), weights[term.name].sum())
            for term in self.terms
        }


def _weights(targets: Targets, labels: tuple[int, ...] | None) -> Tensor:
    """Return the weights [B, G] of the objects of some classes; 0 for others."""
    if labels is None:
        return targets.weights
    allowed = constants(labels, targets.labels.device, torch.int64)
    return targets.weights * (targets.labels[..., None] == allowed).any(-1)
