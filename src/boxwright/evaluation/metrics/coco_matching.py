"""COCO's rules: matching in an image, precision and recall of a class, at every overlap and in every range of size.

Dimensions: T overlap thresholds, S ranges of size, D detections and G objects of an image, N detections of a class in
all images, best first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boxwright.evaluation.metrics.average_precision import precision_and_recall, sample_precision
from boxwright.evaluation.metrics.judged import MatchedDetections, MatchesByClass, MatchFlags
from boxwright.evaluation.metrics.matching import NOBODY, claim_best_free
from boxwright.evaluation.metrics.metric import Curve, Matches
from boxwright.evaluation.metrics.regions import Regions
from boxwright.types import Categories

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Bools = NDArray[np.bool_]
THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
# Areas in pixels: all, small, medium, large.
# Limits are COCO's, 1e10 for infinity; an area of exactly a limit belongs to both ranges.
RANGES = np.array(((0.0, 1e10), (0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e10)))


@dataclass(frozen=True)
class Truth:
    """The objects of an image.

    Attributes:
        labels: int64 [G].
        areas: float64 [G], in pixels.
        crowd: bool [G]; objects that stand for many, and do not count.
    """

    regions: Regions
    labels: Indices
    areas: Floats
    crowd: Bools


@dataclass(frozen=True)
class Candidates:
    """The detections of an image that take part, by class, best first.

    Attributes:
        image: The number of the image.
        labels: int64 [D].
        ranks: int64 [D]; the number of better detections of the class in the image.
        scores: float32 [D].
        detections: int64 [D]; the index among all detections of the image.
    """

    image: int
    regions: Regions
    labels: Indices
    ranks: Indices
    scores: NDArray[np.float32]
    detections: Indices


def to_candidates(image: int, regions: Regions, labels: Indices, scores: NDArray[np.float32]) -> Candidates:
    """Return all detections of an image as candidates; ties of score keep their order."""
    order = np.lexsort((-scores, labels))
    ordered = labels[order]
    ranks = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return Candidates(image, regions, ordered, ranks, scores[order], order)


def select(candidates: Candidates, chosen: Bools) -> Candidates:
    """Return some candidates, bool [D]."""
    columns = {name: getattr(candidates, name)[chosen] for name in ("labels", "ranks", "scores", "detections")}
    return replace(candidates, **columns)


def unmatched(candidates: Candidates) -> MatchedDetections:
    """Return candidates as if there were no objects: those outside a range of size are ignored."""
    areas = candidates.regions[candidates.detections].areas
    shape = (len(RANGES), len(THRESHOLDS), len(candidates.labels))
    return MatchedDetections(
        candidates.labels,
        candidates.ranks,
        candidates.scores,
        right=np.zeros(shape, np.bool_),
        ignored=np.repeat(is_outside(areas, RANGES)[:, None], len(THRESHOLDS), axis=1),
        images=np.full(len(candidates.labels), candidates.image),
        detections=candidates.detections,
        objects=np.full(shape[1:], NOBODY, np.int32),
    )


def match_classes(
    judged: MatchedDetections, regions: Regions, truth: Truth, known: Indices
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Match the detections with the objects of their class, in `judged`; yield each class and its objects that count.

    Args:
        judged: As `unmatched` returns; it is updated.
        regions: All detections of the image.
        known: int64, in order; the classes that are evaluated.

    Yields:
        A label, and the number of objects in each range of size, int64 [S].
    """
    own_labels = np.unique(truth.labels)
    for label in own_labels[are_known(own_labels, known)].tolist():
        chosen = np.flatnonzero(truth.labels == label)
        crowd = truth.crowd[chosen]
        ignored = crowd | is_outside(truth.areas[chosen], RANGES)
        own = slice(*np.searchsorted(judged.labels, [label, label + 1]).tolist())
        if own.start < own.stop:
            detected, objects = regions[judged.detections[own]], truth.regions[chosen]
            overlap = detected.overlaps(objects)
            if crowd.any():
                overlap = np.where(crowd, detected.overlaps_of_crowds(objects), overlap)
            claims, of_ignored = claim_under_rules(overlap, ignored, crowd)
            taken = claims != NOBODY
            judged.right[..., own] = taken & ~of_ignored
            judged.ignored[..., own] = np.where(taken, of_ignored, judged.ignored[..., own])
            judged.objects[:, own] = np.append(chosen, NOBODY)[claims[0]]
        yield label, (~ignored).sum(1)


def are_known(labels: Indices, known: Indices) -> Bools:
    """Return which labels are among those known, which are in order: by bisection, as a set may have 10,000 classes."""
    if not len(known):
        return np.zeros(labels.shape, np.bool_)
    nearest = known[np.minimum(np.searchsorted(known, labels), len(known) - 1)]
    same: Bools = nearest == labels
    return same


def claim_under_rules(overlap: Floats, ignored: Bools, crowd: Bools) -> tuple[Indices, Bools]:
    """Match each detection with an object under every threshold and range of size, by COCO's rule.

    Args:
        overlap: float64 [D, G].
        ignored: bool [S, G]; objects that do not count in each range.
        crowd: bool [G]; objects that any number of detections may match.

    Returns:
        The matched object, or NOBODY, int64 [S, T, D]; and whether it is an ignored one, bool [S, T, D].
    """
    rules = np.repeat(ignored, len(THRESHOLDS), axis=0)
    claims = claim_best_free(overlap, np.tile(THRESHOLDS, len(ignored)), rules, crowd)
    claims = claims.reshape(len(ignored), len(THRESHOLDS), len(overlap))
    # A detection without an object has the index -1, which is that of the False that is appended.
    padded = np.pad(ignored, ((0, 0), (0, 1)))
    return claims, padded[np.arange(len(ignored))[:, None, None], claims]


def is_outside(areas: Floats, ranges: Floats) -> Bools:
    """Return whether areas [N] are outside each range of size, [S, N]."""
    return np.asarray((areas < ranges[:, :1]) | (areas > ranges[:, 1:]))


@dataclass(frozen=True)
class ClassResults:
    """What is summarized of a class: precision [S, T, 101], and recall [S, T] at each limit of detections."""

    precision: Floats
    recalls: Mapping[int, Floats]


def compute_class_results(
    judged: MatchesByClass, label: int, objects: NDArray[np.int64], limits: Sequence[int]
) -> ClassResults:
    """Return the results of a class.

    Args:
        objects: int64 [S]; how many count in each range of size.
        limits: How many of the best detections of each image count for recall.
    """
    verdicts = judged.verdicts(judged.best_first(label))
    recalls = {limit: final_recall(verdicts, objects, limit) for limit in limits}
    return ClassResults(precision_at_recalls(verdicts, objects), recalls)


def mean_of_known(values: Iterable[Floats]) -> float:
    """Return the mean of the values other than -1; -1 if there are none."""
    known = np.concatenate([np.zeros(0), *(np.asarray(value, np.float64).ravel() for value in values)])
    known = known[known > -1]
    return float(known.mean()) if known.size else -1.0


def precision_at_recalls(verdicts: MatchFlags, objects: NDArray[np.int64]) -> Floats:
    """Return the envelope of precision at 101 recalls, float64 [S, T, 101]; -1 for a range without objects.

    Args:
        objects: int64 [S].
    """
    precision = np.full((len(objects), len(THRESHOLDS), len(RECALLS)), -1.0)
    for size in np.flatnonzero(objects).tolist():
        for threshold in range(len(THRESHOLDS)):
            rule = size * len(THRESHOLDS) + threshold
            right, counted = verdicts.right_by(rule), verdicts.counted_by(rule)
            precision[size, threshold] = sample_precision(right, counted, float(objects[size]), RECALLS)
    return precision


def final_recall(verdicts: MatchFlags, objects: NDArray[np.int64], limit: int) -> Floats:
    """Return the recall of the best `limit` detections of each image, float64 [S, T]; -1 for a range without objects.

    Args:
        objects: int64 [S].
    """
    matches = np.zeros((len(objects), len(THRESHOLDS)))
    among = verdicts.among(limit)
    for rule in range(matches.size):
        matches[divmod(rule, len(THRESHOLDS))] = np.count_nonzero(among.right_by(rule))
    return np.where(objects[:, None] > 0, matches / np.maximum(objects[:, None], 1), -1.0)


class ClassCurves(Collection[Curve]):
    """The curves of classes at every overlap, for objects of all sizes; each is made when it is read.

    Together they need hundreds of bytes for each detection, and most evaluations read none.
    """

    def __init__(
        self, judged: MatchesByClass, objects: Mapping[int, NDArray[np.int64]], categories: Categories
    ) -> None:
        """Hold what they are made of.

        Args:
            objects: Of each label how many objects count in each range of size, int64 [S].
        """
        self._judged = judged
        self._objects = {label: float(counts[0]) for label, counts in sorted(objects.items()) if counts[0]}
        self._names = {category.label: category.name for category in categories}

    def __len__(self) -> int:
        return len(self._objects) * len(THRESHOLDS)

    def __contains__(self, curve: object) -> bool:
        return any(member is curve for member in self)

    def __iter__(self) -> Iterator[Curve]:
        for label, count in self._objects.items():
            order = self._judged.best_first(label)
            verdicts = self._judged.verdicts(order)
            for number, threshold in enumerate(THRESHOLDS.tolist()):
                counted = verdicts.counted_by(number)
                chosen, gains = order[counted], verdicts.right_by(number)[counted].astype(np.float64)
                every = self._judged.every
                matches = Matches(
                    *(part[chosen].astype(np.int64) for part in (every.images, every.detections, every.objects[number]))
                )
                precision, recall = precision_and_recall(gains, 1 - gains, count)
                scores = every.scores[chosen].astype(np.float64)
                yield Curve(self._names[label], threshold, scores, gains, count, precision, recall, matches)
