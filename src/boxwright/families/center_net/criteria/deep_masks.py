"""The task of DeepMAC's masks (TF's `DeepMACMetaArch.loss`).

Dimensions: B batch, G objects (padded), h w mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.families.center_net.criteria.deep_mask_losses import DeepMaskLoss, MaskSupervision
from boxwright.families.center_net.predictions import DeepMaskPredictions
from boxwright.nn.criteria.terms import LossTerm
from boxwright.nn.ops.boxes import normalized
from boxwright.nn.ops.constants import constants
from boxwright.types import Targets

# Given boxes [B, G, 4] in 0..1, returns them moved at random.
Jitter = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DeepMaskTerm:
    """One of the losses.

    Attributes:
        name: In TF's `Loss/…`.
        labels: Of the classes whose objects it learns from; None for all.
    """

    name: str
    weight: float
    loss: DeepMaskLoss
    labels: tuple[int, ...] | None = None


@dataclass(frozen=True)
class DeepMaskTask:
    """The losses of masks, each divided by the weights of the objects that it learns from.

    Attributes:
        jitter: Moves boxes in training, before the groundtruth is cropped; None for not.
    """

    terms: tuple[DeepMaskTerm, ...]
    jitter: Jitter | None = None

    def __call__(self, masks: DeepMaskPredictions, targets: Targets, size: tuple[int, int]) -> dict[str, LossTerm]:
        """Return the terms, averaged over stages.

        Args:
            size: Of the grid, in pixels.
        """
        if not masks.of_objects:
            raise ValueError("the network has not been given the groundtruth, and so predicted no masks of it")
        boxes = normalized(targets.boxes, size)
        views = masks.of_views or (None,) * len(masks.of_objects)
        totals: dict[str, list[Tensor]] = {term.name: [] for term in self.terms}
        weights = {term.name: _weights(targets, term.labels) for term in self.terms}
        for logits, view in zip(masks.of_objects, views, strict=True):
            regions = boxes if self.jitter is None or masks.step is None else self.jitter(boxes)
            given = MaskSupervision(boxes, regions, targets, size, view, masks.features, masks.step)
            for term in self.terms:
                totals[term.name].append((term.loss(logits.float(), given) * weights[term.name]).sum())
        return {
            f"Loss/{term.name}": LossTerm(term.weight * torch.stack(totals[term.name]).mean(), weights[term.name].sum())
            for term in self.terms
        }


def _weights(targets: Targets, labels: tuple[int, ...] | None) -> Tensor:
    """Return the weights [B, G] of the objects of some classes; 0 for others."""
    if labels is None:
        return targets.weights
    allowed = constants(labels, targets.labels.device, torch.int64)
    return targets.weights * (targets.labels[..., None] == allowed).any(-1)
