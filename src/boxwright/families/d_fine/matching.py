"""Matching of queries with objects, one to one and at the least cost (DETR, Carion et al., 2020).

Dimensions: S sets of outputs, B batch, Q queries, G objects (padded), K classes. Boxes are center x, center y, width,
height, in 0..1 of the input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.base.device import without_wait
from boxwright.families.d_fine.boxes import to_corners
from boxwright.nn.ops.operators import is_plain
from boxwright.types.packing import fetched

_ALPHA, _GAMMA, _EPSILON = 0.25, 2.0, 1e-8
# What a cost that is not a number counts as: the step's losses tell of it.
_IMPOSSIBLE = 1e6


@dataclass(frozen=True)
class MatchingCosts:
    """The cost of matching a query with an object: a weighted sum.

    Attributes:
        classes: Weight of the focal loss of the object's class, relative to that of its absence.
        l1: Weight of the distance of the boxes.
        giou: Weight of the negative generalized intersection over union.
    """

    classes: float = 2.0
    l1: float = 5.0
    giou: float = 2.0

    @torch.no_grad()
    def __call__(self, logits: Tensor, boxes: Tensor, labels: Tensor, objects: Tensor) -> Tensor:
        """Return float32 [S, B, Q, G].

        Args:
            logits: [S, B, Q, K].
            boxes: [S, B, Q, 4].
            labels: int64 [B, G].
            objects: [B, G, 4].
        """
        scores = logits.float().sigmoid()
        present = _ALPHA * (1 - scores) ** _GAMMA * -(scores + _EPSILON).log()
        absent = (1 - _ALPHA) * scores**_GAMMA * -(1 - scores + _EPSILON).log()
        columns = labels[None, :, None].expand(len(scores), -1, scores.shape[2], -1)
        of_classes = (present - absent).gather(-1, columns)
        distances = torch.cdist(boxes, objects.expand(len(boxes), -1, -1, -1), p=1)
        overlaps = generalized_iou(to_corners(boxes)[..., :, None, :], to_corners(objects)[:, None])
        return self.classes * of_classes + self.l1 * distances - self.giou * overlaps


def iou_parts(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return intersection over union, union and hull of boxes xyxy [..., 4], which broadcast; 0 for empty unions."""
    low, high = torch.maximum(boxes[..., :2], others[..., :2]), torch.minimum(boxes[..., 2:], others[..., 2:])
    intersection = (high - low).clamp(min=0).prod(-1)
    areas = ((corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1]) for corners in (boxes, others))
    union = sum(areas) - intersection
    first, last = torch.minimum(boxes[..., :2], others[..., :2]), torch.maximum(boxes[..., 2:], others[..., 2:])
    # The inner `where` keeps 0 / 0 out of the backward pass.
    iou = torch.where(union > 0, intersection / torch.where(union > 0, union, 1.0), 0.0)
    return iou, union, (last - first).prod(-1)


def generalized_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the generalized intersection over union (Rezatofighi et al., 2019) of boxes xyxy, which broadcast."""
    iou, union, hull = iou_parts(boxes, others)
    return iou - torch.where(hull > 0, (hull - union) / torch.where(hull > 0, hull, 1.0), 0.0)


@dataclass(frozen=True)
class Matches:
    """Which object each query is matched with.

    Attributes:
        own: int64 [S, B, Q]; in each set of outputs alone, no object twice; -1 for none.
        union: int64 [B, Q]; the object that most sets match a query with; -1 where none does. An object may have
            several queries there.
    """

    own: Tensor
    union: Tensor


def match(costs: Tensor, valid: Tensor) -> Matches:
    """Return the matches of least cost, exactly, on the device of the costs; a GPU is waited for once.

    Args:
        costs: float32 [S, B, Q, G].
        valid: bool [B, G]; objects that count.
    """
    on_cpu = fetched([costs, valid])
    both = without_wait((least_cost_matches if is_plain(on_cpu[0]) else _operator)(*on_cpu), costs.device)
    return Matches(both[:-1], both[-1])


def least_cost_matches(costs: Tensor, valid: Tensor) -> Tensor:
    """Return the matches of each set, and last their union, int64 [S + 1, B, Q]; all on the CPU."""
    own = _matched(costs.numpy(), valid.numpy())
    votes = (own[..., None] == np.arange(costs.shape[-1])).sum(0)
    # The first of equal votes counts, so that a match does not depend on how something was sorted.
    union = np.where(votes.max(-1) > 0, votes.argmax(-1), -1) if votes.shape[-1] else np.full(own.shape[1:], -1)
    return torch.from_numpy(np.concatenate([own, union[None]]))


# The operator runs on the CPU, whatever device the network is on: a graph has it as one step, with known shapes.
_operator = torch.library.custom_op("boxwright_cpu::least_cost_matches", least_cost_matches, mutates_args=())


@_operator.register_fake
def _(costs: Tensor, valid: Tensor) -> Tensor:
    del valid
    return costs.new_empty((costs.shape[0] + 1, *costs.shape[1:3]), dtype=torch.int64)


def _matched(costs: NDArray[np.float32], valid: NDArray[np.bool_]) -> NDArray[np.int64]:
    from scipy.optimize import linear_sum_assignment  # takes seconds to import

    matches = np.full(costs.shape[:3], -1, np.int64)
    for image, objects in enumerate(valid):
        numbers = np.flatnonzero(objects)
        if not len(numbers):
            continue
        for number, set_costs in enumerate(costs[:, image][..., numbers]):
            safe = np.nan_to_num(set_costs, nan=_IMPOSSIBLE, posinf=_IMPOSSIBLE, neginf=-_IMPOSSIBLE)
            # Queries are the rows: with objects first it takes nine times as long.
            rows, columns = linear_sum_assignment(safe)
            matches[number, image, rows] = numbers[columns]
    return matches
