"""The task of identities: embeddings at centers are learned by telling all individuals apart (FairMOT, section 3.2).

Dimensions: B batch, G objects (padded), T identities.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.families.center_net.criteria.task import Stages, known, mean_over_stages, object_count
from boxwright.families.center_net.predictions import StageMaps
from boxwright.nn.criteria.classification_losses import ClassificationLoss
from boxwright.nn.criteria.terms import LossTerm
from boxwright.types import Targets


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
