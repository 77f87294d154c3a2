"""The task of DensePose (Güler et al., 2018): of points on bodies the part of the surface, and where on it they lie.

Dimensions: B batch, G objects (padded), D points of an object (padded), N points of an image, C channels, S parts, H W
grid of cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.base.device import constants
from boxwright.families.center_net.cells import Grid, grid_of, read
from boxwright.families.center_net.criteria.task import Stages, known, mean_over_stages
from boxwright.families.center_net.predictions import STRIDE, StageMaps, SurfaceMaps
from boxwright.nn.criteria.classification_losses import ClassificationLoss
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.criteria.localization_losses import LocalizationLoss
from boxwright.types import Targets
from boxwright.types.dense_pose import COLUMNS, KNOWN, PART, PLACE, SURFACE

# Given maps [B, C, H, W] and points [B, N, 2], x, y in pixels, returns the maps' values there, float [B, N, C].
ReadAt = Callable[[Tensor, Tensor], Tensor]


def at_cells(maps: Tensor, points: Tensor) -> Tensor:
    """Return the values of the cells that hold the points."""
    return read(maps, _within((points.flip(-1) / STRIDE).trunc(), grid_of(maps)))


def enlarged(maps: Tensor, points: Tensor) -> Tensor:
    """Return the values of the pixels that hold the points, of maps enlarged to the input's size as images are."""
    height, width = grid_of(maps)
    pixels = _within(points.flip(-1).trunc(), (height * STRIDE, width * STRIDE))
    places = ((pixels + 0.5) / STRIDE - 0.5).clamp(min=0)
    low = places.floor()
    high, share = _within(low + 1, (height, width)), places - low
    rows, columns = torch.stack([low, high], -1).unbind(-2)
    total = torch.zeros(*points.shape[:2], maps.shape[1], device=maps.device)
    # Four values of each point, where TF enlarges 72 maps to the size of the image first.
    for row, down in ((0, 1 - share[..., :1]), (1, share[..., :1])):
        for column, across in ((0, 1 - share[..., 1:]), (1, share[..., 1:])):
            cells = torch.stack([rows[..., row], columns[..., column]], -1)
            total = total + read(maps, cells).float() * down * across
    return total


def _within(cells: Tensor, grid: Grid) -> Tensor:
    """Return cells [..., 2] as ones of the grid: a point may lie on the far border."""
    return cells.clamp(min=0).minimum(constants(grid, cells.device) - 1)


@dataclass(frozen=True)
class SurfaceTargets:
    """What is learned of points.

    Attributes:
        places: float [B, N, 2]; x, y in pixels.
        parts: int64 [B, N].
        coordinates: float [B, N, 2]; v, u.
        weights: float [B, N]; 0 for padding.
    """

    places: Tensor
    parts: Tensor
    coordinates: Tensor
    weights: Tensor

    @classmethod
    def of(cls, targets: Targets) -> SurfaceTargets:
        """Return the points of all objects.

        Raises:
            DataError: If there are objects, but the data have no points.
        """
        points = known(targets.dense_pose, targets, (1, COLUMNS), "the surface of bodies")
        weights = points[..., KNOWN] * targets.weights[..., None]
        rows = points.flatten(1, 2)
        return cls(rows[..., PLACE], rows[..., PART].long(), rows[..., SURFACE], weights.flatten(1))


@dataclass(frozen=True)
class SurfaceTask:
    """The losses of parts and of coordinates on them, divided by the number of points.

    Attributes:
        read_at: Reads maps at points.
    """

    classification: ClassificationLoss
    localization: LocalizationLoss
    part_weight: float = 1.0
    coordinate_weight: float = 1.0
    read_at: ReadAt = enlarged

    def __call__(self, stages: Stages, targets: Targets, valid: Tensor) -> dict[str, LossTerm]:
        """Return `Loss/densepose/heatmap` and `Loss/densepose/regression`."""
        del valid
        wanted = SurfaceTargets.of(targets)
        count = (wanted.weights != 0).sum().float()

        def of_parts(maps: StageMaps) -> Tensor:
            logits = self.read_at(_surface(maps).parts, wanted.places).float()
            rows = wanted.parts[..., None] == torch.arange(logits.shape[-1], device=logits.device)
            return self.classification(logits, rows.to(logits.dtype), wanted.weights[..., None]).sum()

        def of_coordinates(maps: StageMaps) -> Tensor:
            every = self.read_at(_surface(maps).coordinates, wanted.places).float().unflatten(-1, (-1, 2))
            own = every.gather(2, wanted.parts[..., None, None].expand(-1, -1, 1, 2)).squeeze(2)
            return self.localization(own, wanted.coordinates, wanted.weights).sum()

        return {
            "Loss/densepose/heatmap": LossTerm(self.part_weight * mean_over_stages(stages, of_parts), count),
            "Loss/densepose/regression": LossTerm(
                self.coordinate_weight * mean_over_stages(stages, of_coordinates), count
            ),
        }


def _surface(maps: StageMaps) -> SurfaceMaps:
    if maps.surface is None:
        raise ValueError("the network has no heads of the task")
    return maps.surface
