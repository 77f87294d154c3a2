"""The criterion of D-FINE (Peng et al., 2024), with either its classification loss or DEIM's (Huang et al., 2024).

Each set of outputs is matched with the objects alone, by which classes are learned; boxes are learned by the union of
all sets' matches. Boxes are center x, center y, width, height, in 0..1 of the input.

Dimensions: S sets of outputs, L decoder layers, B batch, Q queries, K classes, G objects (padded), N + 1 bins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.families.d_fine.boxes import distances_of_boxes, from_corners, neighboring_bins, to_corners
from boxwright.families.d_fine.matching import MatchingCosts, generalized_iou, iou_parts, match
from boxwright.families.d_fine.predictions import DecoderOutputs, DFinePredictions, QueryOutputs
from boxwright.nn.criteria.criterion import Description, LossTerm
from boxwright.nn.ops.boxes import normalized
from boxwright.types import Targets

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
class BatchObjects:
    """The objects of a batch.

    Attributes:
        labels: int64 [B, G].
        boxes: float32 [B, G, 4].
        weights: float32 [B, G].
        there: bool [B, G]; False for padding, objects without weight, and those of images that do not count.
        counted: float32 [B]; 0 for images that do not count, else 1.
    """

    labels: Tensor
    boxes: Tensor
    weights: Tensor
    there: Tensor
    counted: Tensor


@dataclass(frozen=True)
class Pairs:
    """The object of each query.

    Attributes:
        labels: int64 [..., B, Q]; any for queries without an object.
        boxes: float32 [..., B, Q, 4]; any for queries without an object.
        weights: float32 [..., B, Q]; 0 for queries without an object.
        there: bool [..., B, Q].
    """

    labels: Tensor
    boxes: Tensor
    weights: Tensor
    there: Tensor


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
        objects = objects_of(targets, predictions.input_size)
        totals = self.totals(predictions, objects)
        boxes = objects.there.sum().float()
        counts = torch.stack([totals.pairs, totals.others])
        terms = {
            "Loss/classification_loss": LossTerm(totals.classification.sum(), boxes),
            "Loss/l1_loss": LossTerm(totals.l1.sum(), totals.pairs),
            "Loss/giou_loss": LossTerm(totals.giou.sum(), totals.pairs),
            "Loss/fgl_loss": LossTerm(totals.fgl.sum(), totals.pairs),
            "Loss/ddf_loss/pairs": LossTerm(totals.ddf[0].sum(), counts, _pairs_divisor),
            "Loss/ddf_loss/others": LossTerm(totals.ddf[1].sum(), counts, _others_divisor),
        }
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
        sets = [*_sets(predictions.queries), predictions.encoder]
        logits, boxes = _stacked(sets)
        matches = match(self.costs(logits, boxes, objects.labels, objects.boxes), objects.there)
        own = pairs_of(matches.own, objects)
        of_boxes = pairs_of(matches.union, objects) if self.union else own
        return self._totals(predictions, predictions.queries, (logits, boxes), (own, of_boxes), objects.counted)

    def denoising_totals(self, predictions: DFinePredictions, objects: BatchObjects) -> SetTotals:
        """Return the sums of losses of noisy queries, all groups together."""
        denoised = predictions.denoised
        if denoised is None:
            raise ValueError("predictions without noisy queries")
        pairs = pairs_of(denoised.objects, objects)
        sets = _stacked(_sets(denoised.outputs))
        return self._totals(predictions, denoised.outputs, sets, (pairs, pairs), objects.counted)

    def _totals(
        self,
        predictions: DFinePredictions,
        outputs: DecoderOutputs,
        sets: tuple[Tensor, Tensor],
        matched: tuple[Pairs, Pairs],
        counted: Tensor,
    ) -> SetTotals:
        """Return the sums of losses.

        Args:
            sets: Logits [S, B, Q, K] and boxes [S, B, Q, 4].
            matched: The pairs by which classes are learned, and those by which boxes are.
        """
        (logits, boxes), (own, pairs), weights = sets, matched, self.weights
        layers = len(outputs.layers)
        corners, wanted = to_corners(boxes), to_corners(pairs.boxes)
        overlaps = iou_parts(corners, wanted)[0].detach()
        giou = generalized_iou(corners, wanted)
        distances = _distances(outputs)
        of_layers = _first(pairs, layers)
        fgl = fine_grained_localization(distances, outputs.frame, of_layers, predictions.bins, predictions.scale)
        ddf = self._distillation(outputs, distances, overlaps[:layers], of_layers, counted)
        is_pair = pairs.there if pairs.there.ndim == 2 else pairs.there[layers - 1]
        return SetTotals(
            weights.classification * self._classification(logits, corners, own, counted),
            weights.l1 * _sums((boxes - pairs.boxes).abs().sum(-1) * pairs.weights),
            weights.giou * _sums((1 - giou) * pairs.weights),
            weights.fgl * _sums(fgl * overlaps[:layers] * of_layers.weights),
            (weights.ddf * ddf[0], weights.ddf * ddf[1]),
            is_pair.sum().float(),
            (counted[:, None] * is_pair.logical_not()).sum(),
        )

    def _classification(self, logits: Tensor, corners: Tensor, pairs: Pairs, counted: Tensor) -> Tensor:
        overlaps = iou_parts(corners, to_corners(pairs.boxes))[0].detach()
        classes = F.one_hot(pairs.labels, logits.shape[-1]).to(logits.dtype) * pairs.there[..., None]
        losses = self.classification(logits, classes, overlaps[..., None])
        # An object's weight is that of its own class; absence counts in full.
        weighted = losses * torch.where(classes > 0, pairs.weights[..., None], 1.0)
        return _sums(weighted.sum(-1) * counted[:, None])

    def _distillation(
        self, outputs: DecoderOutputs, distances: Tensor, overlaps: Tensor, pairs: Pairs, counted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the divergence of each layer's distributions from the last one's, of pairs and of others."""
        teacher = outputs.layers[-1]
        divergence = distribution_divergence(distances[:-1], distances[-1].detach())
        confidence = teacher.logits.detach().float().sigmoid().amax(-1)
        layers = _first(pairs, len(distances) - 1)
        of_pairs = divergence * overlaps[:-1] * layers.there * counted[:, None]
        of_others = divergence * confidence * layers.there.logical_not() * counted[:, None]
        return _sums(of_pairs), _sums(of_others)


def objects_of(targets: Targets, size: tuple[int, int]) -> BatchObjects:
    """Return the objects of a batch, whose boxes are in pixels of an input of (height, width)."""
    valid = targets.valid & (targets.weights > 0)
    counted = torch.ones_like(targets.weights[:, :1].sum(1)) if targets.annotated is None else targets.annotated.float()
    valid = valid & (counted > 0)[:, None]
    return BatchObjects(targets.labels, from_corners(normalized(targets.boxes, size)), targets.weights, valid, counted)


def pairs_of(numbers: Tensor, objects: BatchObjects) -> Pairs:
    """Return the objects of some numbers int64 [..., B, Q], of which -1 is no object."""
    matched = numbers >= 0
    if objects.labels.shape[1] == 0:
        nothing = torch.zeros_like(numbers)
        return Pairs(nothing, nothing[..., None].expand(*numbers.shape, 4).float(), nothing.float(), matched)
    places = numbers.clamp(min=0)
    shape = numbers.shape[:-2]
    labels = objects.labels.expand(*shape, -1, -1).gather(-1, places)
    boxes = objects.boxes.expand(*shape, -1, -1, -1).gather(-2, places[..., None].expand(*places.shape, 4))
    weights = objects.weights.expand(*shape, -1, -1).gather(-1, places)
    return Pairs(labels, boxes, weights * matched, matched)


def fine_grained_localization(distances: Tensor, frame: Tensor, pairs: Pairs, bins: Tensor, scale: Tensor) -> Tensor:
    """Return the cross-entropy of distributions with the two bins around the right distances, [L, B, Q].

    Args:
        distances: float32 [L, B, Q, 4 · (N + 1)].
        frame: float32 [B, Q, 4].
        pairs: Of each layer, or of all.
        bins: float32 [N + 1].
        scale: [1].
    """
    below, above = neighboring_bins(distances_of_boxes(frame, pairs.boxes, scale), bins)
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


def _sets(outputs: DecoderOutputs) -> list[QueryOutputs]:
    return [*outputs.layers, *([] if outputs.pre is None else [outputs.pre])]


def _stacked(sets: list[QueryOutputs]) -> tuple[Tensor, Tensor]:
    return torch.stack([outputs.logits for outputs in sets]).float(), torch.stack(
        [outputs.boxes for outputs in sets]
    ).float()


def _distances(outputs: DecoderOutputs) -> Tensor:
    return torch.stack([layer.distances for layer in outputs.layers if layer.distances is not None]).float()


def _first(pairs: Pairs, layers: int) -> Pairs:
    """Return the pairs of the first sets, which are the layers, where each set has its own."""
    if pairs.there.ndim == 2:
        return pairs
    return Pairs(pairs.labels[:layers], pairs.boxes[:layers], pairs.weights[:layers], pairs.there[:layers])


def _sums(losses: Tensor) -> Tensor:
    """Return the sum of each set of [S, B, Q]."""
    return losses.sum((1, 2))


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
