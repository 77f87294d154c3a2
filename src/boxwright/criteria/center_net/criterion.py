"""The criterion of CenterNet (Objects as Points, equations 1 to 4; TF's CenterNetMetaArch.loss).

Dimensions: B batch, G objects (padded), H W grid of cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from boxwright.base.errors import DataError
from boxwright.criteria.criterion import Description
from boxwright.criteria.terms import LossTerm
from boxwright.ops.cells import grid_of, valid_cells
from boxwright.types import Targets
from boxwright.types.center_net import CenterPredictions, StageMaps

Stages = tuple[StageMaps, ...]


class Task(Protocol):
    """What the network learns of objects: its targets, and its losses on the maps of every stage."""

    def __call__(self, stages: Stages, targets: Targets, valid: Tensor) -> dict[str, LossTerm]:
        """Return the terms, averaged over stages.

        Args:
            stages: The maps of each stage.
            targets: The groundtruth, in pixels of the network's input.
            valid: bool [B, H, W]; the cells that learn.
        """
        ...


@dataclass(frozen=True)
class CenterNetCriterion:
    """Compare the maps of every stage with groundtruth, task by task."""

    tasks: tuple[Task, ...]

    def __call__(self, predictions: CenterPredictions, targets: Targets) -> dict[str, LossTerm]:
        """Return the terms of all tasks, by TF's names."""
        centers = predictions.stages[-1].centers
        valid = valid_cells(predictions.true_sizes, grid_of(centers))
        if targets.annotated is not None:
            valid = valid & targets.annotated[:, None, None]
        terms: dict[str, LossTerm] = {}
        for task in self.tasks:
            terms |= task(predictions.stages, targets, valid)
        return terms

    def describe(self, predictions: CenterPredictions, targets: Targets) -> Description:
        """Return the mean number of objects per image."""
        del predictions
        return Description({"AvgNumGroundtruthBoxesPerImage": targets.valid.sum(1).float().mean()}, {})


def mean_over_stages(stages: Stages, loss: Callable[[StageMaps], Tensor]) -> Tensor:
    """Return the mean of a loss of each stage, a scalar."""
    return torch.stack([loss(maps) for maps in stages]).mean()


def object_count(targets: Targets) -> Tensor:
    """Return the number of objects that have a weight, a float scalar."""
    return (targets.weights != 0).sum().float()


def known(value: Tensor | None, targets: Targets, shape: Sequence[int], what: str) -> Tensor:
    """Return a field of the groundtruth; zeros of the shape if there are no objects.

    Raises:
        DataError: If there are objects, but the data have no such field.
    """
    if value is not None:
        return value
    if bool(targets.valid.any()):
        raise DataError(f"the detector learns {what}, but the records have none; remove the task, or add them")
    return targets.boxes.new_zeros(*targets.weights.shape, *shape)
