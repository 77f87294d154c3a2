"""The losses of RF-DETR's masks, at points that mostly lie where masks are least certain (PointRend, Kirillov et al.).

Points are x and y in 0..1 of the input.

Dimensions: B batch, G groups, Q queries of all groups, N objects (padded), R matched queries (padded), P points, h w
map of masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.families.rf_detr.masks import MaskFactors
from boxwright.nn.ops.roi import masks_at
from boxwright.nn.uniforms import uniforms
from boxwright.types import Targets
from boxwright.types.masks import InstanceMasks


class DrawPoints(Protocol):
    """Draws points for each image of a batch."""

    def __call__(self, keys: Tensor, stream: int, count: int) -> Tensor:
        """Return [B, count, 2] that follow from keys int64 [B] and the number of a stream."""
        ...


def draw_points(keys: Tensor, stream: int, count: int) -> Tensor:
    """Return uniform points, float32 [B, count, 2]."""
    points: Tensor = uniforms(keys, 2 * count, stream).unflatten(1, (count, 2))
    return points


@dataclass(frozen=True)
class MaskWeights:
    """What the parts of a cost or loss count.

    Attributes:
        cross_entropy: Of the mean over points.
        dice: Of the dice loss (Milletari et al., 2016).
    """

    cross_entropy: float = 5.0
    dice: float = 5.0


@dataclass(frozen=True)
class GroundtruthMasks:
    """The masks of a batch's objects.

    Attributes:
        weights: float32 [B, N]; 0 for objects whose mask does not count.
        keys: int64 [B]; what is drawn for an image follows from its key.
    """

    masks: InstanceMasks
    weights: Tensor
    keys: Tensor


def read_masks(targets: Targets) -> GroundtruthMasks | None:
    """Return the masks of a batch; None for a batch without objects.

    Raises:
        DataError: If there are objects without masks.
    """
    targets.require_masks("set load_instance_masks and mask_type in the input reader, or remove the model's masks")
    if targets.masks is None or targets.labels.shape[1] == 0:
        return None
    weights = torch.ones_like(targets.weights) if targets.mask_weights is None else targets.mask_weights
    return GroundtruthMasks(targets.masks, weights, targets.drawing_keys())


# One point for so many cells of a mask.
_CELLS_PER_POINT = 16
# So many candidates for each point of the loss, and the share of the points that are the least certain of them.
_CANDIDATES, _UNCERTAIN = 3, 0.75
# What is drawn for each set of outputs: points of matching, candidates, and the rest.
_STREAMS = 3


@dataclass(frozen=True)
class MaskCriterion:
    """Compare masks with groundtruth at points that are drawn anew in each step.

    Attributes:
        costs: In matching.
        weights: In the loss.
        draw: Draws the points.
    """

    costs: MaskWeights = MaskWeights()
    weights: MaskWeights = MaskWeights()
    draw: DrawPoints = draw_points

    @torch.no_grad()
    def matching_costs(self, sets: Sequence[MaskFactors], groundtruth: GroundtruthMasks) -> list[Tensor]:
        """Return the cost of each query's mask and each object's, of every set of outputs, float32 [B, Q, N]."""
        numbers = torch.arange(groundtruth.weights.shape[1], device=groundtruth.weights.device)
        numbers = numbers.expand(len(groundtruth.weights), -1)
        costs = []
        for number, factors in enumerate(sets):
            count = max(factors.channels.shape[2] * factors.channels.shape[3] // _CELLS_PER_POINT, 1)
            points = self.draw(groundtruth.keys, _STREAMS * number, count)
            logits = factors.queries.float() @ _read(factors.channels.float(), points) + factors.bias
            wanted = masks_at(groundtruth.masks, numbers, points[:, None]).mT
            entropy = (F.softplus(-logits) @ wanted + F.softplus(logits) @ (1 - wanted)) / count
            scores = logits.sigmoid()
            dice = 1 - (2 * scores @ wanted + 1) / (scores.sum(-1)[..., None] + wanted.sum(1)[:, None] + 1)
            cost = self.costs.cross_entropy * entropy + self.costs.dice * dice
            costs.append(cost * (groundtruth.weights > 0)[:, None])
        return costs

    def totals(
        self,
        sets: Sequence[MaskFactors],
        matches: Sequence[Tensor],
        groundtruth: GroundtruthMasks | None,
        weights: Tensor,
        groups: int,
    ) -> Tensor:
        """Return the weighted sums of cross-entropy and dice loss over all sets of outputs, [2].

        Args:
            sets: What masks are made of.
            matches: int64 [B, Q] of each set; the object of each query, -1 for none.
            groundtruth: None for no objects.
            weights: float32 [B, N]; of the objects.
            groups: G, in each of which an object is matched at most once.
        """
        if groundtruth is None:
            # Data-parallel processes wait for every gradient, the masks' too.
            parts = [part.sum() for one in sets for part in (one.channels, one.queries, one.bias)]
            return torch.stack(parts).sum().float().expand(2) * 0.0
        weights = weights * groundtruth.weights
        most = groups * min(weights.shape[1], sets[0].queries.shape[1] // groups)
        totals = []
        for number, (factors, places) in enumerate(zip(sets, matches, strict=True)):
            # The matched queries first, in their order: a fixed number of rows, without a wait for the GPU.
            rows = (places < 0).byte().argsort(dim=1, stable=True)[:, :most]
            objects = places.gather(1, rows)
            held, objects = objects >= 0, objects.clamp(min=0)
            logits = factors.logits(rows).float()
            points = self._points(logits.detach(), groundtruth.keys, number)
            wanted = masks_at(groundtruth.masks, objects, points)
            losses = self._losses(_read_each(logits, points), wanted)
            totals.append((losses * (weights.gather(1, objects) * held)).sum((1, 2)))
        return torch.stack(totals).sum(0)

    @torch.no_grad()
    def _points(self, logits: Tensor, keys: Tensor, number: int) -> Tensor:
        """Return the points of each mask [B, R, P, 2], most of them where its logits [B, R, h, w] are nearest to 0."""
        rows, height, width = logits.shape[1:]
        count = max(height, height * width // _CELLS_PER_POINT)
        uncertain, drawn = int(_UNCERTAIN * count), _CANDIDATES * count
        candidates = self.draw(keys, _STREAMS * number + 1, rows * drawn).unflatten(1, (rows, drawn))
        least = _read_each(logits, candidates).abs().topk(uncertain, largest=False).indices
        chosen = candidates.gather(2, least[..., None].expand(-1, -1, -1, 2))
        rest = count - uncertain
        others = self.draw(keys, _STREAMS * number + 2, rows * rest).unflatten(1, (rows, rest))
        return torch.cat([chosen, others], 2)

    def _losses(self, logits: Tensor, wanted: Tensor) -> Tensor:
        """Return the weighted cross-entropy and dice loss of masks at their points [B, R, P], [2, B, R]."""
        entropy = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(-1)
        scores = logits.sigmoid()
        dice = 1 - (2 * (scores * wanted).sum(-1) + 1) / (scores.sum(-1) + wanted.sum(-1) + 1)
        return torch.stack([self.weights.cross_entropy * entropy, self.weights.dice * dice])


def _read(maps: Tensor, points: Tensor) -> Tensor:
    """Return the values [B, C, P] of maps [B, C, h, w] at points [B, P, 2], interpolated; border cells reach beyond."""
    return F.grid_sample(maps, 2 * points[:, :, None] - 1, padding_mode="border", align_corners=False).squeeze(-1)


def _read_each(masks: Tensor, points: Tensor) -> Tensor:
    """Return the values [B, R, P] of masks [B, R, h, w] at points of each [B, R, P, 2]."""
    return _read(masks.flatten(0, 1)[:, None], points.flatten(0, 1)).view(points.shape[:-1])
