"""The criterion of D-FINE (Peng et al., 2024), with either its classification loss or DEIM's (Huang et al., 2024).

Queries are matched with objects one to one and at the least cost (DETR, Carion et al., 2020), in each set of outputs
alone, by which classes are learned; boxes are learned by the union of all sets' matches. Boxes are center x, center y,
width, height, in 0..1 of the input.

Dimensions: S sets of outputs, L decoder layers, B batch, Q queries, K classes, G objects (padded), N + 1 bins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.families.d_fine.decoder import DecoderOutputs, DFinePredictions, QueryOutputs, measure_distances
from boxwright.families.d_fine.distillation import compute_distillation
from boxwright.nn.criteria.criterion import Description, LossTerm
from boxwright.nn.criteria.set_matching import (
    BatchObjects,
    MatchedObjects,
    MatchingCosts,
    gather_matches,
    iou_and_giou,
    match,
    read_objects,
    unite,
)
from boxwright.nn.ops.boxes import to_corners
from boxwright.types import Targets


def neighboring_bins(distances: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bin below each distance, int64 [...] in 0..N-1, and the share of the bin above it, float32 [...].

    Distances beyond the outermost bins belong to these wholly.
    """
    count = len(bins) - 1
    # The last bin at or below a distance.
    below = (torch.searchsorted(bins, distances.contiguous(), right=True) - 1).clamp(0, count - 1)
    low, high = bins[below], bins[below + 1]
    return below, ((distances - low) / (high - low)).clamp(0, 1)


# Divides logits of distributions before they are compared.
_TEMPERATURE = 5.0
# From logits [..., K], the target's class as a one [..., K] or nothing, and its overlap [..., 1], to losses [..., K].
ClassificationLoss = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Varifocal:
    """Cross-entropy towards the overlap with the object, by which an object's own class is weighted (VarifocalNet)."""

    alpha: float = 0.75
    gamma: float = 2.0

    def __call__(self, logits: Tensor, classes: Tensor, overlaps: Tensor) -> Tensor:
        """Return the loss of each logit."""
        wanted = classes * overlaps
        weights = self.alpha * logits.detach().sigmoid() ** self.gamma * (1 - classes) + wanted
        return F.binary_cross_entropy_with_logits(logits, wanted, weights, reduction="none")


@dataclass(frozen=True)
class MatchabilityAware:
    """Cross-entropy towards a power of the overlap, in which poor matches count as much as good ones (DEIM)."""

    gamma: float = 1.5

    def __call__(self, logits: Tensor, classes: Tensor, overlaps: Tensor) -> Tensor:
        """Return the loss of each logit."""
        wanted = classes * overlaps**self.gamma
        weights = logits.detach().sigmoid() ** self.gamma * (1 - classes) + classes
        return F.binary_cross_entropy_with_logits(logits, wanted, weights, reduction="none")


@dataclass(frozen=True)
class LossWeights:
    """The weights of the parts of the loss."""

    classification: float = 1.0
    l1: float = 5.0
    giou: float = 2.0
    fgl: float = 0.15
    ddf: float = 1.5


@dataclass(frozen=True)
class SetTotals:
    """Weighted sums of losses, of each set of outputs.

    Attributes:
        classification: [S], as are `l1` and `giou`: the layers, the first layer's plain outputs, and possibly the
            encoder's.
        fgl: [L]; fine-grained localization.
        ddf: Decoupled distillation focal losses of the layers before the last, [L - 1] each: of pairs, and of others.
        pairs: How many queries have an object.
        others: How many have not.
    """

    classification: Tensor
    l1: Tensor
    giou: Tensor
    fgl: Tensor
    ddf: tuple[Tensor, Tensor]
    pairs: Tensor
    others: Tensor


@dataclass(frozen=True)
class DFineCriterion:
    """Compare the outputs of every layer with groundtruth, and each layer's distributions with the last one's.

    Attributes:
        union: Whether boxes are learned by the union of all sets' matches, as published, or by each set's own.
    """

    costs: MatchingCosts
    classification: ClassificationLoss
    weights: LossWeights
    union: bool = True

    def __call__(self, predictions: DFinePredictions, targets: Targets) -> dict[str, LossTerm]:
        """Return the terms of all sets of outputs."""
        objects = read_objects(targets, predictions.input_size)
        totals = self.totals(predictions, objects)
        boxes = objects.valid.sum().float()
        counts = torch.stack([totals.pairs, totals.others])
        terms = {
            "Loss/classification_loss": LossTerm(totals.classification.sum(), boxes),
            "Loss/l1_loss": LossTerm(totals.l1.sum(), totals.pairs),
            "Loss/giou_loss": LossTerm(totals.giou.sum(), totals.pairs),
            "Loss/fgl_loss": LossTerm(totals.fgl.sum(), totals.pairs),
            "Loss/ddf_loss/pairs": LossTerm(totals.ddf[0].sum(), counts, _pairs_divisor),
            "Loss/ddf_loss/others": LossTerm(totals.ddf[1].sum(), counts, _others_divisor),
        }
        if predictions.imitation is not None:
            terms["Loss/distillation_loss"] = compute_distillation(predictions.imitation)
        denoised = predictions.denoised
        if denoised is not None:
            noisy = self.denoising_totals(predictions, objects)
            counts = torch.stack([totals.pairs, totals.others, noisy.pairs, noisy.others])
            # Per group, so that the divisor is how many objects there are, however many groups a part has.
            terms |= {
                f"Loss/denoising/{name}_loss": LossTerm(getattr(noisy, name).sum() / denoised.groups, boxes)
                for name in ("classification", "l1", "giou", "fgl")
            }
            terms["Loss/denoising/ddf_loss/pairs"] = LossTerm(noisy.ddf[0].sum(), counts, _pairs_divisor)
            terms["Loss/denoising/ddf_loss/others"] = LossTerm(noisy.ddf[1].sum(), counts, _others_divisor)
        return terms

    def describe(self, predictions: DFinePredictions, targets: Targets) -> Description:
        """Return the mean number of objects per image."""
        del predictions
        return Description({"AvgNumGroundtruthBoxesPerImage": targets.valid.sum(1).float().mean()}, {})

    def totals(self, predictions: DFinePredictions, objects: BatchObjects) -> SetTotals:
        """Return the sums of losses of the queries that detect."""
        logits, boxes = _stack([*predictions.queries.sets, predictions.encoder])
        matches = match(self.costs(logits, boxes, objects.labels, objects.boxes), objects.valid)
        own = gather_matches(matches, objects)
        for_boxes = gather_matches(unite(matches, objects.labels.shape[1]), objects) if self.union else own
        return self._totals(predictions, predictions.queries, (logits, boxes), (own, for_boxes), objects.counted)

    def denoising_totals(self, predictions: DFinePredictions, objects: BatchObjects) -> SetTotals:
        """Return the sums of losses of noisy queries, all groups together."""
        denoised = predictions.denoised
        if denoised is None:
            raise ValueError("predictions without noisy queries")
        matches, sets = gather_matches(denoised.objects, objects), _stack(denoised.outputs.sets)
        return self._totals(predictions, denoised.outputs, sets, (matches, matches), objects.counted)

    def _totals(
        self,
        predictions: DFinePredictions,
        outputs: DecoderOutputs,
        sets: tuple[Tensor, Tensor],
        matches: tuple[MatchedObjects, MatchedObjects],
        counted: Tensor,
    ) -> SetTotals:
        """Return the sums of losses.

        Args:
            sets: Logits [S, B, Q, K] and boxes [S, B, Q, 4].
            matches: Those by which classes are learned, and those by which boxes are.
        """
        (logits, boxes), (own, objects), weights = sets, matches, self.weights
        layers = len(outputs.layers)
        corners = to_corners(boxes)
        iou, giou = iou_and_giou(corners, to_corners(objects.boxes))
        overlaps = iou.detach()
        of_own = overlaps if own is objects else iou_and_giou(corners.detach(), to_corners(own.boxes))[0]
        distances = torch.stack([layer.distances for layer in outputs.layers if layer.distances is not None]).float()
        of_layers = objects.first(layers)
        fgl = fine_grained_localization(distances, outputs.frame, of_layers, predictions.bins, predictions.scale)
        ddf = self._distillation(outputs, distances, overlaps[:layers], of_layers, counted)
        matched = objects.matched if objects.matched.ndim == 2 else objects.matched[layers - 1]
        return SetTotals(
            weights.classification * self._classification(logits, of_own, own, counted),
            weights.l1 * ((boxes - objects.boxes).abs().sum(-1) * objects.weights).sum((1, 2)),
            weights.giou * ((1 - giou) * objects.weights).sum((1, 2)),
            weights.fgl * (fgl * overlaps[:layers] * of_layers.weights).sum((1, 2)),
            (weights.ddf * ddf[0], weights.ddf * ddf[1]),
            matched.sum().float(),
            (counted[:, None] * matched.logical_not()).sum(),
        )

    def _classification(self, logits: Tensor, overlaps: Tensor, objects: MatchedObjects, counted: Tensor) -> Tensor:
        classes = F.one_hot(objects.labels, logits.shape[-1]).to(logits.dtype) * objects.matched[..., None]
        losses = self.classification(logits, classes, overlaps[..., None])
        # An object's weight is that of its own class; absence counts in full.
        weighted = losses * torch.where(classes > 0, objects.weights[..., None], 1.0)
        return (weighted.sum(-1) * counted[:, None]).sum((1, 2))

    def _distillation(
        self, outputs: DecoderOutputs, distances: Tensor, overlaps: Tensor, objects: MatchedObjects, counted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the divergence of each layer's distributions from the last one's, of pairs and of others."""
        divergence = distribution_divergence(distances[:-1], distances[-1].detach())
        confidence = outputs.layers[-1].logits.detach().float().sigmoid().amax(-1)
        matched = objects.first(len(distances) - 1).matched
        of_pairs = divergence * overlaps[:-1] * matched * counted[:, None]
        of_others = divergence * confidence * matched.logical_not() * counted[:, None]
        return of_pairs.sum((1, 2)), of_others.sum((1, 2))


def fine_grained_localization(
    distances: Tensor, frame: Tensor, objects: MatchedObjects, bins: Tensor, scale: Tensor
) -> Tensor:
    """Return the cross-entropy of distributions with the two bins around the right distances, [L, B, Q].

    Args:
        distances: float32 [L, B, Q, 4 · (N + 1)].
        frame: float32 [B, Q, 4].
        objects: Of each layer, or of all.
        bins: float32 [N + 1].
        scale: [1].
    """
    below, above = neighboring_bins(measure_distances(frame, objects.boxes, scale), bins)
    likelihoods = distances.unflatten(-1, (4, len(bins))).log_softmax(-1)
    places = torch.stack([below, below + 1], -1).expand(*likelihoods.shape[:-1], 2)
    low, high = likelihoods.gather(-1, places).unbind(-1)
    losses: Tensor = -(low * (1 - above) + high * above).sum(-1)
    return losses


def distribution_divergence(students: Tensor, teacher: Tensor) -> Tensor:
    """Return the divergence of distributions from a teacher's, of all sides together, [L, B, Q].

    Students are [L, B, Q, 4 · (N + 1)], the teacher [B, Q, 4 · (N + 1)]. Both are softened by a temperature; its square
    undoes what that takes from the gradients.
    """
    wanted = (teacher.unflatten(-1, (4, -1)) / _TEMPERATURE).log_softmax(-1)
    given = (students.unflatten(-1, (4, -1)) / _TEMPERATURE).log_softmax(-1)
    divergences: Tensor = ((wanted - given) * wanted.exp()).sum((-2, -1)) * _TEMPERATURE**2
    return divergences


def _stack(sets: Sequence[QueryOutputs]) -> tuple[Tensor, Tensor]:
    """Return the logits [S, B, Q, K] and boxes [S, B, Q, 4] of sets of outputs."""
    logits, boxes = [outputs.logits for outputs in sets], [outputs.boxes for outputs in sets]
    return torch.stack(logits).float(), torch.stack(boxes).float()


def _pairs_divisor(counts: Tensor) -> Tensor:
    """Return the divisor of distillation's sum over pairs: sides, and the share of both that pairs have.

    Pairs and others have shares by the roots of how many there are; those of noisy queries are the ordinary ones'.

    Args:
        counts: Of pairs and others, and possibly of noisy pairs and others, [2 or 4].
    """
    roots = counts[:2].sqrt()
    return 4 * counts[-2].clamp(min=1) * roots.sum().clamp(min=1) / roots[0].clamp(min=_LEAST_ROOT)


def _others_divisor(counts: Tensor) -> Tensor:
    """Return the divisor of distillation's sum over other queries."""
    roots = counts[:2].sqrt()
    return 4 * counts[-1].clamp(min=1) * roots.sum().clamp(min=1) / roots[1].clamp(min=_LEAST_ROOT)


# Without pairs, or without others, their share is nothing.
_LEAST_ROOT = 1e-20
