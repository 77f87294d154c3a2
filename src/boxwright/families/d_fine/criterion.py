"""The criterion of D-FINE (Peng et al., 2024), with either its classification loss or DEIM's (Huang et al., 2024).

Queries are matched with objects one to one and at the least cost (DETR, Carion et al., 2020), in each set of outputs
alone, by which classes are learned; boxes are learned by the union of all sets' matches. Boxes are center x, center y,
width, height, in 0..1 of the input.

Dimensions: S sets of outputs, L decoder layers, B batch, Q queries, K classes, G objects (padded), N + 1 bins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from boxwright.base.device import is_plain, without_wait
from boxwright.families.d_fine.decoder import DecoderOutputs, DFinePredictions, QueryOutputs, measure_distances
from boxwright.nn.criteria.criterion import Description, LossTerm
from boxwright.nn.ops.boxes import compute_overlaps, from_corners, normalized, to_corners
from boxwright.types import Targets
from boxwright.types.packing import fetched

_ALPHA, _GAMMA, _EPSILON = 0.25, 2.0, 1e-8
# What a cost that is not a number counts as: the step's losses tell of it.
_IMPOSSIBLE = 1e6


@dataclass(frozen=True)
class MatchingCosts:
    """The cost of matching a query with an object: a weighted sum.

    Attributes:
        classes: Weight of the focal loss of the object's class, relative to that of its absence.
        l1: Weight of the distance of the boxes.
        giou: Weight of the negative generalized intersection over union.
    """

    classes: float = 2.0
    l1: float = 5.0
    giou: float = 2.0

    @torch.no_grad()
    def __call__(self, logits: Tensor, boxes: Tensor, labels: Tensor, objects: Tensor) -> Tensor:
        """Return float32 [S, B, Q, G].

        Args:
            logits: [S, B, Q, K].
            boxes: [S, B, Q, 4].
            labels: int64 [B, G].
            objects: [B, G, 4].
        """
        scores = logits.float().sigmoid()
        present = _ALPHA * (1 - scores) ** _GAMMA * -(scores + _EPSILON).log()
        absent = (1 - _ALPHA) * scores**_GAMMA * -(1 - scores + _EPSILON).log()
        columns = labels[None, :, None].expand(len(scores), -1, scores.shape[2], -1)
        of_classes = (present - absent).gather(-1, columns)
        distances = torch.cdist(boxes, objects.expand(len(boxes), -1, -1, -1), p=1)
        _, overlaps = iou_and_giou(to_corners(boxes)[..., :, None, :], to_corners(objects)[:, None])
        return self.classes * of_classes + self.l1 * distances - self.giou * overlaps


def iou_and_giou(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return IoU and generalized IoU (Rezatofighi et al., 2019) of boxes xyxy, which broadcast; 0 for empty unions."""

    def divide(areas: Tensor, wholes: Tensor) -> Tensor:
        # The inner `where` keeps 0 / 0 out of the backward pass.
        return torch.where(wholes > 0, areas / torch.where(wholes > 0, wholes, 1.0), 0.0)

    intersection, union, hull = compute_overlaps(boxes, others)
    iou = divide(intersection, union)
    return iou, iou - divide(hull - union, hull)


@dataclass(frozen=True)
class Matches:
    """Which object each query is matched with.

    Attributes:
        own: int64 [S, B, Q]; in each set of outputs alone, no object twice; -1 for none.
        union: int64 [B, Q]; the object that most sets match a query with; -1 where none does. An object may have
            several queries there.
    """

    own: Tensor
    union: Tensor


def match(costs: Tensor, valid: Tensor) -> Matches:
    """Return the matches of least cost, exactly, on the device of the costs; a GPU is waited for once.

    Args:
        costs: float32 [S, B, Q, G].
        valid: bool [B, G]; objects that count.
    """
    on_cpu = fetched([costs, valid])
    both = without_wait((least_cost_matches if is_plain(on_cpu[0]) else _operator)(*on_cpu), costs.device)
    return Matches(both[:-1], both[-1])


def least_cost_matches(costs: Tensor, valid: Tensor) -> Tensor:
    """Return the matches of each set, and last their union, int64 [S + 1, B, Q]; all on the CPU."""
    own = _matched(costs.numpy(), valid.numpy())
    votes = (own[..., None] == np.arange(costs.shape[-1])).sum(0)
    # The first of equal votes counts, so that a match does not depend on how something was sorted.
    union = np.where(votes.max(-1) > 0, votes.argmax(-1), -1) if votes.shape[-1] else np.full(own.shape[1:], -1)
    return torch.from_numpy(np.concatenate([own, union[None]]))


# The operator runs on the CPU, whatever device the network is on: a graph has it as one step, with known shapes.
_operator = torch.library.custom_op("boxwright_cpu::least_cost_matches", least_cost_matches, mutates_args=())


@_operator.register_fake
def _(costs: Tensor, valid: Tensor) -> Tensor:
    del valid
    return costs.new_empty((costs.shape[0] + 1, *costs.shape[1:3]), dtype=torch.int64)


def _matched(costs: NDArray[np.float32], valid: NDArray[np.bool_]) -> NDArray[np.int64]:
    from scipy.optimize import linear_sum_assignment  # takes seconds to import

    matches = np.full(costs.shape[:3], -1, np.int64)
    for image, objects in enumerate(valid):
        numbers = np.flatnonzero(objects)
        if not len(numbers):
            continue
        for number, set_costs in enumerate(costs[:, image][..., numbers]):
            safe = np.nan_to_num(set_costs, nan=_IMPOSSIBLE, posinf=_IMPOSSIBLE, neginf=-_IMPOSSIBLE)
            # Queries are the rows: with objects first it takes nine times as long.
            rows, columns = linear_sum_assignment(safe)
            matches[number, image, rows] = numbers[columns]
    return matches


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
class BatchObjects:
    """The objects of a batch.

    Attributes:
        labels: int64 [B, G].
        boxes: float32 [B, G, 4].
        weights: float32 [B, G].
        valid: bool [B, G]; False for padding, objects without weight, and those of images that do not count.
        counted: float32 [B]; 0 for images that do not count, else 1.
    """

    labels: Tensor
    boxes: Tensor
    weights: Tensor
    valid: Tensor
    counted: Tensor


@dataclass(frozen=True)
class MatchedObjects:
    """The object of each query.

    Attributes:
        labels: int64 [..., B, Q]; any for queries without an object.
        boxes: float32 [..., B, Q, 4]; any for queries without an object.
        weights: float32 [..., B, Q]; 0 for queries without an object.
        matched: bool [..., B, Q].
    """

    labels: Tensor
    boxes: Tensor
    weights: Tensor
    matched: Tensor

    def first(self, layers: int) -> MatchedObjects:
        """Return those of the first sets, which are the layers, where each set has its own."""
        if self.matched.ndim == 2:
            return self
        return MatchedObjects(self.labels[:layers], self.boxes[:layers], self.weights[:layers], self.matched[:layers])


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
        own = gather_matches(matches.own, objects)
        for_boxes = gather_matches(matches.union, objects) if self.union else own
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
        distances = torch.stack([layer.distances for layer in outputs.layers if layer.distances is not None]).float()
        of_layers = objects.first(layers)
        fgl = fine_grained_localization(distances, outputs.frame, of_layers, predictions.bins, predictions.scale)
        ddf = self._distillation(outputs, distances, overlaps[:layers], of_layers, counted)
        matched = objects.matched if objects.matched.ndim == 2 else objects.matched[layers - 1]
        return SetTotals(
            weights.classification * self._classification(logits, corners, own, counted),
            weights.l1 * ((boxes - objects.boxes).abs().sum(-1) * objects.weights).sum((1, 2)),
            weights.giou * ((1 - giou) * objects.weights).sum((1, 2)),
            weights.fgl * (fgl * overlaps[:layers] * of_layers.weights).sum((1, 2)),
            (weights.ddf * ddf[0], weights.ddf * ddf[1]),
            matched.sum().float(),
            (counted[:, None] * matched.logical_not()).sum(),
        )

    def _classification(self, logits: Tensor, corners: Tensor, objects: MatchedObjects, counted: Tensor) -> Tensor:
        overlaps = iou_and_giou(corners, to_corners(objects.boxes))[0].detach()
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


def read_objects(targets: Targets, size: tuple[int, int]) -> BatchObjects:
    """Return the objects of a batch, whose boxes are in pixels of an input of (height, width)."""
    valid = targets.valid & (targets.weights > 0)
    counted = torch.ones_like(targets.weights[:, :1].sum(1)) if targets.annotated is None else targets.annotated.float()
    valid = valid & (counted > 0)[:, None]
    return BatchObjects(targets.labels, from_corners(normalized(targets.boxes, size)), targets.weights, valid, counted)


def gather_matches(indices: Tensor, objects: BatchObjects) -> MatchedObjects:
    """Return the object that each query is matched to.

    Args:
        indices: int64 [..., B, Q]; an index into the image's objects, -1 for a query without one.
    """
    matched = indices >= 0
    if objects.labels.shape[1] == 0:
        nothing = torch.zeros_like(indices)
        return MatchedObjects(nothing, nothing[..., None].expand(*indices.shape, 4).float(), nothing.float(), matched)
    places = indices.clamp(min=0)
    shape = indices.shape[:-2]
    labels = objects.labels.expand(*shape, -1, -1).gather(-1, places)
    boxes = objects.boxes.expand(*shape, -1, -1, -1).gather(-2, places[..., None].expand(*places.shape, 4))
    weights = objects.weights.expand(*shape, -1, -1).gather(-1, places)
    return MatchedObjects(labels, boxes, weights * matched, matched)


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
