"""The criterion of CenterNet, and its tasks of centers and boxes (Objects as Points, equations 1 to 4).

Dimensions: B batch, G objects (padded), K classes, P keypoints of a task, H W grid of cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from boxwright.families.center_net.cells import (
    CellBoxes,
    Grid,
    as_rows_of_cells,
    brightest,
    brightest_of_class,
    center_cells,
    gaussian_deviations,
    gaussians,
    grid_shape,
    read,
    valid_cells,
)
from boxwright.families.center_net.criteria.deep_masks import DeepMaskTask
from boxwright.families.center_net.criteria.keypoints import KeypointTargets
from boxwright.families.center_net.criteria.task import Stages, Task, known, mean_over_stages, object_count
from boxwright.families.center_net.predictions import STRIDE, CenterPredictions, StageMaps
from boxwright.nn.criteria.criterion import Description, LossTerm
from boxwright.nn.criteria.losses import ClassificationLoss, LocalizationLoss
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
        cell_boxes = CellBoxes.of_pixels(boxes)
        cells = center_cells(cell_boxes.centers, grid)
        return cls(cells, cell_boxes.sizes, cell_boxes.centers - cells)


@dataclass(frozen=True)
class BoxTask:
    """The losses of sizes and offsets, divided by the number of objects."""

    loss: LocalizationLoss
    size_weight: float = 0.1
    offset_weight: float = 1.0

    def __call__(self, stages: Stages, targets: Targets, valid: Tensor) -> dict[str, LossTerm]:
        """Return `Loss/box/scale` and `Loss/box/offset`."""
        wanted, count = BoxTargets.assign(targets.boxes, grid_shape(valid)), object_count(targets)

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
        cells = BoxTargets.assign(targets.boxes, grid_shape(valid)).cells
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


class CenterAssigner(Protocol):
    """Draws the heatmaps that centers are learned from."""

    def __call__(self, targets: Targets, num_classes: int, grid: Grid) -> Tensor:
        """Return float [B, K, H, W] in 0..1; exactly 1 in the cells that hold centers."""
        ...


@dataclass(frozen=True)
class CentersOfBoxes:
    """Gaussians at the centers of boxes.

    Attributes:
        min_iou: The overlap that a box keeps whose corners move by the Gaussian's radius.
    """

    min_iou: float = 0.7

    @torch.no_grad()
    def __call__(self, targets: Targets, num_classes: int, grid: Grid) -> Tensor:
        """Return float [B, K, H, W] in 0..1."""
        boxes = CellBoxes.of_pixels(targets.boxes)
        deviations = gaussian_deviations(boxes.sizes, self.min_iou)
        return heatmap_of_classes(boxes.centers, deviations, targets.weights, targets, num_classes, grid)


@dataclass(frozen=True)
class CentersOfKeypoints:
    """Gaussians at the weighted means of objects' keypoints, as wide as the keypoints' mean distance from there.

    Attributes:
        weights: Of each keypoint.
    """

    keypoints: KeypointTargets
    weights: tuple[float, ...]
    min_iou: float = 0.7

    @torch.no_grad()
    def __call__(self, targets: Targets, num_classes: int, grid: Grid) -> Tensor:
        """Return float [B, K, H, W] in 0..1; objects without any of the keypoints are not drawn."""
        points, weights = self.keypoints(targets)
        own = torch.stack([torch.full((), weight, device=points.device) for weight in self.weights])
        weights = weights * own[:, None]
        total = weights.sum(1)
        share = weights / total.where(total > 0, 1.0)[:, None]
        centers = (points * share[..., None]).sum(1)
        distance = ((points - centers[:, None]).square().sum(-1).sqrt() * share).sum(1)
        deviations = gaussian_deviations(torch.stack([2 * distance] * 2, dim=-1), self.min_iou)
        object_weights = targets.weights.where(total > 0, 0.0)
        return heatmap_of_classes(centers, deviations, object_weights, targets, num_classes, grid)


def heatmap_of_classes(
    centers: Tensor, deviations: Tensor, weights: Tensor, targets: Targets, num_classes: int, grid: Grid
) -> Tensor:
    """Return the heatmap of each class, float [B, K, H, W]: the maximum of the weighted Gaussians of its objects.

    Args:
        centers: float [B, G, 2]; y, x in cells.
        deviations: float [B, G].
        weights: float [B, G].
        targets: The objects' classes.
    """
    drawn = gaussians(centers, deviations, grid) * weights[..., None, None]
    if targets.class_scores is None:
        return brightest_of_class(drawn, targets.labels, num_classes)
    # An object of several classes is drawn for each.
    of_classes = [brightest(drawn * scores[..., None, None], 1) for scores in targets.class_scores.unbind(-1)]
    return torch.stack(of_classes, dim=1)


@dataclass(frozen=True)
class CenterTask:
    """The loss of center heatmaps, divided by the number of objects.

    Attributes:
        labeled_only: Whether an image counts only in the heatmaps of its verified classes (of all, if none was).
    """

    assigner: CenterAssigner
    loss: ClassificationLoss
    weight: float = 1.0
    labeled_only: bool = False

    def __call__(self, stages: Stages, targets: Targets, valid: Tensor) -> dict[str, LossTerm]:
        """Return `Loss/object_center`."""
        _, num_classes, height, width = stages[-1].centers.shape
        wanted = as_rows_of_cells(self.assigner(targets, num_classes, (height, width)))
        weights = valid.flatten(1)[..., None].to(wanted.dtype)
        if self.labeled_only and targets.verified_labels is not None:
            weights = weights * labeled_classes(targets.verified_labels, num_classes)[:, None]

        def loss(maps: StageMaps) -> Tensor:
            return self.loss(as_rows_of_cells(maps.centers).float(), wanted, weights).sum()

        total = self.weight * mean_over_stages(stages, loss)
        return {"Loss/object_center": LossTerm(total, object_count(targets))}


def labeled_classes(labels: Tensor, num_classes: int) -> Tensor:
    """Return which classes of images were labeled, float [B, K]: those listed, or all where none is.

    Args:
        labels: int64 [B, V]; -1 for padding.
    """
    listed = labels >= 0
    # Padding goes to a column of its own, so that no shape depends on the data.
    columns = labels.where(listed, num_classes)
    labeled = torch.zeros(len(labels), num_classes + 1, device=labels.device).scatter(1, columns, 1.0)[:, :num_classes]
    return torch.where(listed.any(1, keepdim=True), labeled, 1.0)


@dataclass(frozen=True)
class CenterNetCriterion:
    """Compare the maps of every stage with groundtruth, task by task.

    Attributes:
        deep_masks: The task of DeepMAC's masks; None without.
    """

    tasks: tuple[Task, ...]
    deep_masks: DeepMaskTask | None = None

    def __call__(self, predictions: CenterPredictions, targets: Targets) -> dict[str, LossTerm]:
        """Return the terms of all tasks, by TF's names."""
        centers = predictions.stages[-1].centers
        valid = valid_cells(predictions.true_sizes, grid_shape(centers))
        if targets.annotated is not None:
            valid = valid & targets.annotated[:, None, None]
        terms: dict[str, LossTerm] = {}
        for task in self.tasks:
            terms |= task(predictions.stages, targets, valid)
        if self.deep_masks is not None and predictions.deep_masks is not None:
            height, width = grid_shape(centers)
            terms |= self.deep_masks(predictions.deep_masks, targets, (height * STRIDE, width * STRIDE))
        return terms

    def describe(self, predictions: CenterPredictions, targets: Targets) -> Description:
        """Return the mean number of objects per image."""
        del predictions
        return Description({"AvgNumGroundtruthBoxesPerImage": targets.valid.sum(1).float().mean()}, {})
