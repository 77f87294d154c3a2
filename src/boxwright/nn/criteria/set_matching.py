"""Matching of queries with objects, one to one and at the least cost (DETR, Carion et al., 2020).

Boxes are center x, center y, width, height, in 0..1 of the input, unless a docstring says otherwise.

Dimensions: S sets of outputs, B batch, Q queries, K classes, G objects (padded).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.base.device import is_plain, without_wait
from boxwright.nn.ops.boxes import compute_overlaps, from_corners, normalized, to_corners
from boxwright.nn.ops.gpu_kernels import has_kernels
from boxwright.types import Targets
from boxwright.types.packing import fetched

_ALPHA, _GAMMA, _EPSILON = 0.25, 2.0, 1e-8
# Of a box whose sides are a hundred-millionth of the input's: 0 over 0 is 0, with finite gradients.
_LEAST_AREA = 1e-16
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
        _, overlaps = iou_and_giou(to_corners(boxes)[..., :, None, :], to_corners(objects)[:, None])
        return self.classes * of_classes + self.l1 * distances - self.giou * overlaps


def iou_and_giou(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return IoU and generalized IoU (Rezatofighi et al., 2019) of boxes xyxy, which broadcast; 0 for empty unions.

    Boxes are float32, and none is inverted.
    """
    intersection, union, hull = compute_overlaps(boxes, others)
    iou = intersection / union.clamp(min=_LEAST_AREA)
    return iou, iou - (hull - union) / hull.clamp(min=_LEAST_AREA)


def match(costs: Tensor, valid: Tensor) -> Tensor:
    """Return the object that each query of each set is matched with at the least cost, int64 [S, B, Q]; -1 for none.

    No object is matched twice in a set. On a GPU without Triton the costs are copied to the CPU, and waited for.

    Args:
        costs: float32 [S, B, Q, G].
        valid: bool [B, G]; objects that count.
    """
    if costs.is_cuda and has_kernels():
        from boxwright.nn.ops.triton_kernels import assign

        matches: Tensor = assign(costs.contiguous(), valid.contiguous(), _IMPOSSIBLE)
        return matches
    on_cpu = fetched([costs, valid])
    return without_wait((least_cost_matches if is_plain(on_cpu[0]) else _operator)(*on_cpu), costs.device)


def unite(matches: Tensor, objects: int) -> Tensor:
    """Return the object that most sets match each query with, int64 [B, Q], -1 where none does.

    An object may have several queries. Of objects with equally many votes it is the first.

    Args:
        matches: int64 [S, B, Q].
        objects: G.
    """
    if not objects:
        return matches[0]
    votes, first = (matches[..., None] == torch.arange(objects, device=matches.device)).sum(0).max(-1)
    return torch.where(votes > 0, first, -1)


def least_cost_matches(costs: Tensor, valid: Tensor) -> Tensor:
    """Return the matches of each set, int64 [S, B, Q]; all on the CPU."""
    return torch.from_numpy(_matched(costs.numpy(), valid.numpy()))


# The operator runs on the CPU, whatever device the network is on: a graph has it as one step, with known shapes.
_operator = torch.library.custom_op("boxwright_cpu::least_cost_matches", least_cost_matches, mutates_args=())


@_operator.register_fake
def _(costs: Tensor, valid: Tensor) -> Tensor:
    del valid
    return costs.new_empty(costs.shape[:3], dtype=torch.int64)


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


@dataclass(frozen=True)
class BatchObjects:
    """The objects of a batch.

    Attributes:
        labels: int64 [B, G].
        boxes: float32 [B, G, 4].
        weights: float32 [B, G].
        valid: bool [B, G]; False for padding, objects without weight, and those of images that do not count.
        counted: float32 [B]; 0 for images that do not count, else 1.
    """

    labels: Tensor
    boxes: Tensor
    weights: Tensor
    valid: Tensor
    counted: Tensor


@dataclass(frozen=True)
class MatchedObjects:
    """The object of each query.

    Attributes:
        labels: int64 [..., B, Q]; any for queries without an object.
        boxes: float32 [..., B, Q, 4]; any for queries without an object.
        weights: float32 [..., B, Q]; 0 for queries without an object.
        matched: bool [..., B, Q].
    """

    labels: Tensor
    boxes: Tensor
    weights: Tensor
    matched: Tensor

    def first(self, layers: int) -> MatchedObjects:
        """Return those of the first sets, which are the layers, where each set has its own."""
        if self.matched.ndim == 2:
            return self
        return MatchedObjects(self.labels[:layers], self.boxes[:layers], self.weights[:layers], self.matched[:layers])


def read_objects(targets: Targets, size: tuple[int, int]) -> BatchObjects:
    """Return the objects of a batch, whose boxes are in pixels of an input of (height, width)."""
    valid = targets.valid & (targets.weights > 0)
    counted = torch.ones_like(targets.weights[:, :1].sum(1)) if targets.annotated is None else targets.annotated.float()
    valid = valid & (counted > 0)[:, None]
    return BatchObjects(targets.labels, from_corners(normalized(targets.boxes, size)), targets.weights, valid, counted)


def gather_matches(indices: Tensor, objects: BatchObjects) -> MatchedObjects:
    """Return the object that each query is matched to.

    Args:
        indices: int64 [..., B, Q]; an index into the image's objects, -1 for a query without one.
    """
    matched = indices >= 0
    if objects.labels.shape[1] == 0:
        nothing = torch.zeros_like(indices)
        return MatchedObjects(nothing, nothing[..., None].expand(*indices.shape, 4).float(), nothing.float(), matched)
    places = indices.clamp(min=0)
    shape = indices.shape[:-2]
    labels = objects.labels.expand(*shape, -1, -1).gather(-1, places)
    boxes = objects.boxes.expand(*shape, -1, -1, -1).gather(-2, places[..., None].expand(*places.shape, 4))
    weights = objects.weights.expand(*shape, -1, -1).gather(-1, places)
    return MatchedObjects(labels, boxes, weights * matched, matched)
