"""The criterion of RF-DETR: each group of queries matches all objects, in each set of outputs alone.

The classification loss is LW-DETR's (Chen et al., 2024, section 3.1), which knows how well a box fits. Boxes are center
x, center y, width, height, in 0..1 of the input.

Dimensions: S sets of outputs, B batch, G groups, Q queries of all groups, N objects (padded), C columns of the class
head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.families.rf_detr.decoder import QuerySet
from boxwright.families.rf_detr.mask_criterion import MaskCriterion, read_masks
from boxwright.families.rf_detr.network import RfDetrPredictions
from boxwright.nn.criteria.criterion import Description, LossTerm
from boxwright.nn.criteria.set_matching import (
    BatchObjects,
    MatchedObjects,
    MatchingCosts,
    gather_matches,
    iou_and_giou,
    match,
    read_objects,
)
from boxwright.nn.ops.boxes import to_corners
from boxwright.types import Targets

# From logits [..., C], the target's class as a one [..., C] or nothing, and its overlap [..., 1], to losses [..., C].
ClassificationLoss = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class IouAware:
    """Cross-entropy towards a mean of score and overlap; elsewhere, towards 0, weighted by a power of the score.

    Attributes:
        alpha: The score's share in the geometric mean.
        gamma: The power; the weight is part of what is differentiated.
        least: The least that an object's class is taught.
    """

    alpha: float = 0.25
    gamma: float = 2.0
    least: float = 0.01

    def __call__(self, logits: Tensor, classes: Tensor, overlaps: Tensor) -> Tensor:
        """Return the loss of each logit."""
        present, absent = F.logsigmoid(logits), F.logsigmoid(-logits)
        scores = logits.sigmoid()
        mean = scores.detach() ** self.alpha * overlaps ** (1 - self.alpha)
        wanted = mean.clamp(min=self.least)
        of_objects = -wanted * present - (1 - wanted) * absent
        return torch.where(classes > 0, of_objects, -(scores**self.gamma) * absent)


@dataclass(frozen=True)
class Varifocal:
    """Cross-entropy towards the overlap, weighted by it, and elsewhere by a power of the score, with its gradient."""

    alpha: float = 0.25
    gamma: float = 2.0

    def __call__(self, logits: Tensor, classes: Tensor, overlaps: Tensor) -> Tensor:
        """Return the loss of each logit."""
        wanted = classes * overlaps
        weights = torch.where(wanted > 0, wanted, (1 - self.alpha) * logits.sigmoid() ** self.gamma)
        return weights * F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")


@dataclass(frozen=True)
class Focal:
    """The focal loss (Lin et al., 2017), which does not know how well a box fits."""

    alpha: float = 0.25
    gamma: float = 2.0

    def __call__(self, logits: Tensor, classes: Tensor, overlaps: Tensor) -> Tensor:
        """Return the loss of each logit."""
        del overlaps
        scores = logits.sigmoid()
        missed = scores * (1 - classes) + (1 - scores) * classes
        shares = self.alpha * classes + (1 - self.alpha) * (1 - classes)
        return shares * missed**self.gamma * F.binary_cross_entropy_with_logits(logits, classes, reduction="none")


@dataclass(frozen=True)
class LossWeights:
    """The weights of the parts of the loss."""

    classification: float = 1.0
    l1: float = 5.0
    giou: float = 2.0


@dataclass(frozen=True)
class RfDetrCriterion:
    """Compare every set of outputs with groundtruth; all count alike.

    Attributes:
        background: Columns before the first class, which no object is of.
        masks: Compares masks; None for a network without.
    """

    costs: MatchingCosts
    classification: ClassificationLoss
    weights: LossWeights
    background: int = 1
    masks: MaskCriterion | None = None

    def __call__(self, predictions: RfDetrPredictions, targets: Targets) -> dict[str, LossTerm]:
        """Return the terms of all sets of outputs together, divided by the matches of all groups."""
        objects = read_objects(targets, predictions.input_size)
        sets = [*predictions.layers, predictions.encoder]
        groundtruth = None if self.masks is None else read_masks(targets)
        costs: Sequence[Tensor] = ()
        if self.masks is not None and groundtruth is not None:
            costs = self.masks.matching_costs(predictions.masks, groundtruth)
        matches = self.match(sets, objects, predictions.groups, costs)
        totals = torch.stack(
            [
                self.totals(outputs, gather_matches(places, objects), objects.counted)
                for outputs, places in zip(sets, matches, strict=True)
            ]
        ).sum(0)
        names = ["classification", "l1", "giou"]
        if self.masks is not None:
            of_masks = self.masks.totals(predictions.masks, matches, groundtruth, objects.weights, predictions.groups)
            totals, names = torch.cat([totals, of_masks]), [*names, "mask", "dice"]
        count = objects.valid.sum().float() * predictions.groups
        return {f"Loss/{name}_loss": LossTerm(total, count) for name, total in zip(names, totals, strict=True)}

    def describe(self, predictions: RfDetrPredictions, targets: Targets) -> Description:
        """Return the mean number of objects per image."""
        del predictions
        return Description({"AvgNumGroundtruthBoxesPerImage": targets.valid.sum(1).float().mean()}, {})

    def match(
        self, sets: Sequence[QuerySet], objects: BatchObjects, groups: int, more: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """Return the object of each query of each set, int64 [B, Q], -1 for none.

        Args:
            sets: Sets of outputs.
            objects: The groundtruth.
            groups: G.
            more: Further costs of each set, float32 [B, Q, N]; empty for none.
        """
        labels = objects.labels + self.background
        # Sets of few cells have fewer queries; costs beyond those are the same for all objects, and change no match.
        longest = max(outputs.boxes.shape[1] for outputs in sets) // groups
        costs = []
        for number, outputs in enumerate(sets):
            of_set = self.costs(outputs.logits[None].float(), outputs.boxes[None].float(), labels, objects.boxes)[0]
            of_set = of_set + more[number] if more else of_set
            of_groups = of_set.unflatten(1, (groups, -1)).transpose(0, 1)
            costs.append(F.pad(of_groups, (0, 0, 0, longest - of_groups.shape[2]), value=_NEVER))
        matches = match(torch.cat(costs), objects.valid).unflatten(0, (len(sets), groups))
        return [
            places[:, :, : outputs.boxes.shape[1] // groups].transpose(0, 1).flatten(1)
            for outputs, places in zip(sets, matches, strict=True)
        ]

    def totals(self, outputs: QuerySet, objects: MatchedObjects, counted: Tensor) -> Tensor:
        """Return the weighted sums of the losses of classes, distances and overlaps, [3]."""
        weights, boxes = self.weights, outputs.boxes
        iou, giou = iou_and_giou(to_corners(boxes), to_corners(objects.boxes.to(boxes)))
        logits = outputs.logits.float()
        classes = F.one_hot(objects.labels + self.background, logits.shape[-1]) * objects.matched[..., None]
        losses = self.classification(logits, classes.to(logits.dtype), iou.detach()[..., None])
        # An object's weight is that of its own class; absence counts in full.
        weighted = losses * torch.where(classes > 0, objects.weights[..., None], 1.0)
        return torch.stack(
            [
                weights.classification * (weighted.sum(-1) * counted[:, None]).sum(),
                weights.l1 * ((boxes - objects.boxes).abs().sum(-1) * objects.weights).sum(),
                weights.giou * ((1 - giou) * objects.weights).sum(),
            ]
        )


# The cost of a query that is not there.
_NEVER = 1e9
