"""The tasks of masks and of DensePose (Güler et al., 2018).

A mask is a segmentation of each class, the union of its objects (TF's CenterNetMaskTargetAssigner). DensePose learns of
points on bodies the part of the surface, and where on it they lie.

Dimensions: B batch, G objects (padded), D points of an object (padded), N points of an image, K classes, C channels, S
parts, H W grid of cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.base.device import constants
from boxwright.families.center_net.cells import (
    CellBoxes,
    Grid,
    as_rows_of_cells,
    brightest,
    brightest_of_class,
    grid_shape,
    read,
)
from boxwright.families.center_net.criteria.task import Stages, known, mean_over_stages
from boxwright.families.center_net.predictions import STRIDE, StageMaps, SurfaceMaps
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.criteria.losses import ClassificationLoss, LocalizationLoss
from boxwright.nn.ops.roi import mask_targets
from boxwright.types import Targets
from boxwright.types.dense_pose import COLUMNS, KNOWN, PART, PLACE, SURFACE
from boxwright.types.masks import InstanceMasks


@dataclass(frozen=True)
class MaskTask:
    """The loss of class masks, divided by the number of cells, or the sum of their weights."""

    loss: ClassificationLoss
    weight: float = 1.0

    def __call__(self, stages: Stages, targets: Targets, valid: Tensor) -> dict[str, LossTerm]:
        """Return `Loss/segmentation/heatmap`.

        Raises:
            DataError: If there are objects without masks.
        """
        num_classes, grid = stages[-1].centers.shape[1], grid_shape(valid)
        targets.require_masks(
            "add them (image/object/mask of each record, as the input reader's mask_type says), or remove "
            "mask_estimation_task"
        )
        if targets.masks is None:
            segmentation = targets.boxes.new_zeros(len(valid), num_classes, *grid)
        else:
            segmentation = class_masks(targets.masks, targets.labels, num_classes, grid)
        wanted, weights = as_rows_of_cells(segmentation), valid.flatten(1)[..., None].to(segmentation.dtype)
        if targets.mask_weights is not None:
            own = mask_weights(CellBoxes.of_pixels(targets.boxes), targets.mask_weights, grid)
            weights = weights * own.flatten(1)[..., None]

        def loss(maps: StageMaps) -> Tensor:
            if maps.masks is None:
                raise ValueError("the network has no head of the task")
            return self.loss(as_rows_of_cells(maps.masks).float(), wanted, weights).sum()

        return {"Loss/segmentation/heatmap": LossTerm(self.weight * mean_over_stages(stages, loss), weights.sum())}


@torch.no_grad()
def class_masks(masks: InstanceMasks, labels: Tensor, num_classes: int, grid: Grid) -> Tensor:
    """Return the union of each class's masks in cells: float [B, K, H, W] in 0..1, interpolated at cells' middles.

    Args:
        masks: Of the objects, in pixels of the network's input.
        labels: int64 [B, G].
    """
    batch, objects = labels.shape
    # The first and last cells' middles as corners of a crop of the whole input: a cell's are STRIDE pixels apart.
    sides = [count * STRIDE for count in grid]
    start = (STRIDE - 1) / 2
    corners = [(start / (side - 1) * side, (side - 1 - start) / (side - 1) * side) for side in reversed(sides)]
    (left, right), (top, bottom) = corners
    whole = constants([left, top, right, bottom], labels.device).expand(batch, objects, 4)
    numbers = torch.arange(objects, device=labels.device).expand(batch, -1)
    object_masks = mask_targets(masks, numbers, whole, grid, (sides[0], sides[1]))
    return brightest_of_class(object_masks, labels, num_classes)


def mask_weights(boxes: CellBoxes, weights: Tensor, grid: Grid, *, margin: float = 1.05) -> Tensor:
    """Return the weight of each cell: the largest of the objects whose boxes hold it; 0 where one has none; else 1.

    Args:
        boxes: [B, G].
        weights: float [B, G]; the weight of each object's mask.
        margin: The factor on boxes' sides.

    Returns:
        float [B, H, W].
    """
    inside = boxes.scaled(margin).hold(grid)
    object_weights = weights[..., None, None]
    largest = brightest(inside * object_weights, 1)
    blackout = (inside & (object_weights <= 0)).any(1)
    return largest.where(inside.any(1), 1.0).masked_fill(blackout, 0.0)


# Given maps [B, C, H, W] and points [B, N, 2], x, y in pixels, returns the maps' values there, float [B, N, C].
ReadAt = Callable[[Tensor, Tensor], Tensor]


def at_cells(maps: Tensor, points: Tensor) -> Tensor:
    """Return the values of the cells that hold the points."""
    return read(maps, _within((points.flip(-1) / STRIDE).trunc(), grid_shape(maps)))


def enlarged(maps: Tensor, points: Tensor) -> Tensor:
    """Return the values of the pixels that hold the points, of maps enlarged to the input's size as images are."""
    height, width = grid_shape(maps)
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
