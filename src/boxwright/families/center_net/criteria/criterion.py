"""The criterion of CenterNet (Objects as Points, equations 1 to 4; TF's CenterNetMetaArch.loss).

Dimensions: B batch, H W grid of cells.
"""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.families.center_net.cells import grid_of, valid_cells
from boxwright.families.center_net.criteria.deep_masks import DeepMaskTask
from boxwright.families.center_net.criteria.task import Task
from boxwright.families.center_net.predictions import STRIDE, CenterPredictions
from boxwright.nn.criteria.criterion import Description, LossTerm
from boxwright.types import Targets


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
        valid = valid_cells(predictions.true_sizes, grid_of(centers))
        if targets.annotated is not None:
            valid = valid & targets.annotated[:, None, None]
        terms: dict[str, LossTerm] = {}
        for task in self.tasks:
            terms |= task(predictions.stages, targets, valid)
        if self.deep_masks is not None and predictions.deep_masks is not None:
            height, width = grid_of(centers)
            terms |= self.deep_masks(predictions.deep_masks, targets, (height * STRIDE, width * STRIDE))
        return terms

    def describe(self, predictions: CenterPredictions, targets: Targets) -> Description:
        """Return the mean number of objects per image."""
        del predictions
        return Description({"AvgNumGroundtruthBoxesPerImage": targets.valid.sum(1).float().mean()}, {})
