"""Sampling of proposals for training a second stage (Faster R-CNN, section 3.2; TF's FasterRCNNMetaArch).

Dimensions: B batch, R proposals of an image, S sampled ones, G groundtruth boxes (padded).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.nn.criteria.example_sampler import MinibatchSampler
from boxwright.nn.criteria.target_assigner import Assigner
from boxwright.types import Proposals, Targets


@dataclass(frozen=True)
class RegionSampler:
    """Sample proposals with a maximum fraction of positives, keeping their order.

    Attributes:
        add_groundtruth: Whether groundtruth boxes are added to the proposals.
    """

    assigner: Assigner
    sampler: MinibatchSampler
    add_groundtruth: bool = False

    @torch.no_grad()
    def __call__(self, proposals: Proposals, targets: Targets) -> Proposals:
        """Return S proposals per image, and which of them are positive."""
        if self.add_groundtruth:
            proposals = with_groundtruth(proposals, targets)
        assigned = self.assigner(proposals.boxes, targets)
        # Padding is no candidate, nor is what matches a groundtruth box without weight.
        candidates = proposals.valid & (assigned.class_weights.mean(-1) > 0)
        positive = assigned.match >= 0
        chosen = self.sampler(positive, candidates)
        count = min(self.sampler.size, chosen.shape[1])
        # A stable sort instead of `nonzero`, whose shape depends on data.
        index = (~chosen).byte().argsort(dim=1, stable=True)[:, :count]
        taken = chosen.gather(1, index)

        def picked(values: Tensor) -> Tensor:
            return torch.where(taken, values.gather(1, index), 0)

        boxes = proposals.boxes.gather(1, index[..., None].expand(-1, -1, 4)) * taken[..., None]
        return Proposals(boxes, picked(proposals.scores), taken, taken & positive.gather(1, index))


def with_groundtruth(proposals: Proposals, targets: Targets) -> Proposals:
    """Return the proposals followed by the groundtruth boxes with weight, with score 1."""
    valid = targets.valid & (targets.weights > 0)
    return Proposals(
        torch.cat([proposals.boxes, targets.boxes * valid[..., None]], dim=1),
        torch.cat([proposals.scores, valid.to(proposals.scores)], dim=1),
        torch.cat([proposals.valid, valid], dim=1),
    )
