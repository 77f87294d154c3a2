"""The task of boxes: size and offset at each center (Objects as Points, equations 2 and 3).

Dimensions: B batch, G objects (padded).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.families.center_net.cells import CellBoxes, Grid, center_cells, grid_of, read
from boxwright.families.center_net.criteria.task import Stages, known, mean_over_stages, object_count
from boxwright.families.center_net.predictions import StageMaps
from boxwright.nn.criteria.localization_losses import LocalizationLoss
from boxwright.nn.criteria.terms import LossTerm
from boxwright.types import Targets


@dataclass(frozen=True)
class BoxTargets:
    """What is learned at the centers of boxes.

    Attributes:
        cells: float [B, G, 2]; the rows and columns of the cells that hold the centers.
        sizes: float [B, G, 2]; height and width in cells.
        offsets: float [B, G, 2]; y, x from the cell to the center.
    """

    cells: Tensor
    sizes: Tensor
    offsets: Tensor

    @classmethod
    @torch.no_grad()
    def assign(cls, boxes: Tensor, grid: Grid) -> BoxTargets:
        """Return the targets of boxes [B, G, 4], xyxy in pixels."""
        found = CellBoxes.of_pixels(boxes)
        cells = center_cells(found.centers, grid)
        return cls(cells, found.sizes, found.centers - cells)


@dataclass(frozen=True)
class BoxTask:
    """The losses of sizes and offsets, divided by the number of objects."""

    loss: LocalizationLoss
    size_weight: float = 0.1
    offset_weight: float = 1.0

    def __call__(self, stages: Stages, targets: Targets, valid: Tensor) -> dict[str, LossTerm]:
        """Return `Loss/box/scale` and `Loss/box/offset`."""
        wanted, count = BoxTargets.assign(targets.boxes, grid_of(valid)), object_count(targets)

        def total(maps_of: Callable[[StageMaps], Tensor | None], values: Tensor) -> Tensor:
            return mean_over_stages(
                stages, lambda maps: loss_at(maps_of(maps), wanted.cells, values, targets.weights, self.loss)
            )

        sizes = total(lambda maps: maps.sizes, wanted.sizes)
        offsets = total(lambda maps: maps.offsets, wanted.offsets)
        return {
            "Loss/box/scale": LossTerm(self.size_weight * sizes, count),
            "Loss/box/offset": LossTerm(self.offset_weight * offsets, count),
        }


@dataclass(frozen=True)
class TemporalOffsetTask:
    """The loss of the way from each center in the previous frame, for objects that were there."""

    loss: LocalizationLoss
    weight: float = 1.0

    def __call__(self, stages: Stages, targets: Targets, valid: Tensor) -> dict[str, LossTerm]:
        """Return `Loss/track/offset`, divided by the number of objects."""
        offsets = known(targets.temporal_offsets, targets, (2,), "temporal offsets")
        flags = known(targets.track_match_flags, targets, (), "temporal offsets")
        cells = BoxTargets.assign(targets.boxes, grid_of(valid)).cells
        weights = targets.weights * flags
        total = mean_over_stages(
            stages, lambda maps: loss_at(maps.temporal_offsets, cells, offsets, weights, self.loss)
        )
        return {"Loss/track/offset": LossTerm(self.weight * total, object_count(targets))}


def loss_at(maps: Tensor | None, cells: Tensor, wanted: Tensor, weights: Tensor, loss: LocalizationLoss) -> Tensor:
    """Return the sum of the losses of a map's values at cells.

    Args:
        maps: float [B, C, H, W].
        cells: float [B, N, 2].
        wanted: float [B, N, C].
        weights: float [B, N].
    """
    if maps is None:
        raise ValueError("the network has no head of the task")
    return loss(read(maps, cells).float(), wanted, weights).sum()
