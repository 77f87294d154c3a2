"""The task of masks: a segmentation of each class, the union of its objects (TF's CenterNetMaskTargetAssigner).

Dimensions: B batch, G objects (padded), K classes, H W grid of cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.base.device import constants
from boxwright.base.errors import DataError
from boxwright.families.center_net.cells import (
    CellBoxes,
    Grid,
    as_rows_of_cells,
    brightest,
    brightest_of_class,
    grid_of,
)
from boxwright.families.center_net.criteria.task import Stages, mean_over_stages
from boxwright.families.center_net.predictions import STRIDE, StageMaps
from boxwright.nn.criteria.classification_losses import ClassificationLoss
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.ops.roi import mask_targets
from boxwright.types import Targets
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
        num_classes, grid = stages[-1].centers.shape[1], grid_of(valid)
        if targets.masks is None and bool(targets.valid.any()):
            raise DataError(
                "the detector learns masks, but the records have none; add them (image/object/mask of each record, "
                "as the input reader's mask_type says), or remove mask_estimation_task"
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
