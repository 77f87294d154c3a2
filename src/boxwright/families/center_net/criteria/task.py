"""What the tasks of CenterNet share, and the task of identities.

Embeddings at centers are learned by telling all individuals apart (FairMOT, section 3.2).

Dimensions: B batch, H W grid of cells, G objects (padded), T identities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from boxwright.base.errors import DataError
from boxwright.families.center_net.predictions import StageMaps
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.criteria.losses import ClassificationLoss
from boxwright.types import Targets

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


@dataclass(frozen=True)
class IdentityTask:
    """The loss of the classifier of identities, divided by the number of objects."""

    loss: ClassificationLoss
    weight: float = 1.0

    def __call__(self, stages: Stages, targets: Targets, valid: Tensor) -> dict[str, LossTerm]:
        """Return `Loss/track/reid`; an identity that the classifier does not know is none, as in TF.

        Raises:
            DataError: If there are objects, but the data have no track ids.
        """
        del valid
        ids = known(targets.track_ids, targets, (), "identities, which are track ids")

        def loss(maps: StageMaps) -> Tensor:
            if maps.identity_logits is None:
                raise ValueError("the network has not been given the groundtruth, whose identities it classifies")
            logits = maps.identity_logits.float()
            wanted = ids[..., None] == torch.arange(logits.shape[-1], device=logits.device)
            return self.loss(logits, wanted.to(logits.dtype), targets.weights[..., None]).sum()

        return {"Loss/track/reid": LossTerm(self.weight * mean_over_stages(stages, loss), object_count(targets))}
