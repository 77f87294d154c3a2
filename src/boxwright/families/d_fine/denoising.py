"""Denoising: disturbed objects as additional queries in training (DN-DETR, DINO; as in RT-DETR and D-FINE).

Random numbers that follow from keys alone, on any device: no generator keeps a state.

What is drawn for an image is the same in whatever batch, part of a batch or process it is seen.

Dimensions: B batch or keys, G objects (padded), K classes, R noisy queries, Q queries, N numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.families.d_fine.boxes import from_corners, logit
from boxwright.families.d_fine.predictions import NoisyQueries
from boxwright.nn.ops.boxes import normalized
from boxwright.types import Targets

_LOW = 0xFFFFFFFF


def uniforms(keys: Tensor, count: int, stream: int = 0) -> Tensor:
    """Return numbers in [0, 1), float32 [B, count].

    Args:
        keys: int64 [B].
        count: N; the first numbers do not depend on it.
        stream: Different streams of the same keys are independent.
    """
    numbers = torch.arange(count, dtype=torch.int64, device=keys.device) + (stream << 32)
    low = _mixed(_mixed(keys & _LOW) ^ ((keys >> 32) & _LOW))[:, None]
    drawn = _mixed(_mixed(low ^ _mixed(numbers & _LOW)) + _mixed(numbers >> 32) + numbers)
    # 24 bits: as many as float32 has.
    return (drawn >> 8).float() * 2.0**-24


def _mixed(value: Tensor) -> Tensor:
    """Return MurmurHash3's finalizer (Appleby) of 32-bit numbers in int64."""
    value = value & _LOW
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _LOW
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _LOW
    return value ^ (value >> 16)


# Numbers drawn for each query: a chance, a class, four signs and four shifts.
_DRAWS = 10


@dataclass(frozen=True)
class ObjectNoise:
    """Disturbs labels and boxes; half the queries of a group have to find their object, half have to find none.

    Attributes:
        num_queries: How many objects there are in all groups together, at most: G in each.
        label_noise: Twice the share of labels that become a random class.
        box_noise: How far corners move, relative to half a side: less than that where the object has to be found, and
            once to twice that where it has not.
    """

    num_classes: int
    num_queries: int
    label_noise: float = 0.5
    box_noise: float = 1.0

    @torch.no_grad()
    def __call__(self, targets: Targets, size: tuple[int, int], num_queries: int) -> NoisyQueries:
        """Return the noisy queries of a batch; none of them for one without objects.

        What is drawn follows from the keys of the targets; without keys it is the same in each call.

        Args:
            targets: Boxes in pixels of the input.
            size: (height, width) of the input.
            num_queries: Queries that stand after the noisy ones.
        """
        batch, count = targets.labels.shape
        # By the padded number of objects, which parts of a batch share.
        groups = max(1, self.num_queries // max(count, 1))
        keys = targets.keys
        if keys is None:
            keys = torch.arange(batch, device=targets.labels.device)
        drawn = uniforms(keys, groups * 2 * count * _DRAWS).view(batch, groups, 2, count, _DRAWS)
        valid = targets.valid & (targets.weights > 0)
        if targets.annotated is not None:
            valid = valid & targets.annotated[:, None]
        shape = (batch, groups, 2, count)
        labels = self._labels(targets.labels[:, None, None].expand(shape), drawn)
        labels = torch.where(valid[:, None, None], labels, self.num_classes)
        boxes = self._boxes(normalized(targets.boxes, size)[:, None, None].expand(*shape, 4), drawn)
        numbers = torch.arange(count, device=labels.device)
        positives = torch.where(valid, numbers, -1)[:, None].expand(batch, groups, count)
        objects = torch.stack([positives, torch.full_like(positives, -1)], 2)
        return NoisyQueries(
            labels.flatten(1),
            logit(boxes).flatten(1, 3),
            objects.flatten(1),
            blocked_between(groups, 2 * count, num_queries, labels.device),
            groups,
        )

    def _labels(self, labels: Tensor, drawn: Tensor) -> Tensor:
        others = (drawn[..., 1] * self.num_classes).long().clamp(max=self.num_classes - 1)
        return torch.where(drawn[..., 0] < self.label_noise / 2, others, labels)

    def _boxes(self, corners: Tensor, drawn: Tensor) -> Tensor:
        """Return disturbed boxes as center x, center y, width, height."""
        sides = corners[..., 2:] - corners[..., :2]
        # Positives are shifted by 0 to 1, negatives by 1 to 2.
        shifts = drawn[..., 6:] + torch.arange(2, device=drawn.device)[:, None, None]
        signs = torch.where(drawn[..., 2:6] < 0.5, -1.0, 1.0)
        moved = corners + signs * shifts * torch.cat([sides, sides], -1) * (0.5 * self.box_noise)
        return from_corners(moved.clamp(0, 1)).abs()


def blocked_between(groups: int, length: int, queries: int, device: torch.device) -> Tensor:
    """Return which query does not see which, bool [R + Q, R + Q], of groups of a length and the queries after them.

    Groups do not see each other, and ordinary queries, which would learn the answer from them, see none.
    """
    noisy = torch.arange(groups * length, device=device) // length
    group = torch.cat([noisy, torch.full((queries,), groups, device=device)])
    return (group[:, None] != group) & (group < groups)
