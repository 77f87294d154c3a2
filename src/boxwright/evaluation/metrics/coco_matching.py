"""COCO's matching of an image: which detections are right, wrong or ignored under each threshold and range of size.

Dimensions: T overlap thresholds, S ranges of size, R = S × T, D detections, G objects of an image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boxwright.evaluation.metrics.coco_curves import THRESHOLDS
from boxwright.evaluation.metrics.judged import MatchedDetections
from boxwright.evaluation.metrics.matching import NOBODY, claim_best_free, with_nobody
from boxwright.evaluation.metrics.regions import Regions

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Bools = NDArray[np.bool_]
# Areas in pixels: all, small, medium, large.
# Limits are COCO's, 1e10 for infinity; an area of exactly a limit belongs to both ranges.
RANGES = np.array(((0.0, 1e10), (0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e10)))
_RULES = np.tile(THRESHOLDS, len(RANGES))
_SIZES = np.arange(len(RANGES))[:, None, None]


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


def candidates_of(image: int, regions: Regions, labels: Indices, scores: NDArray[np.float32]) -> Candidates:
    """Return all detections of an image as candidates; ties of score keep their order."""
    order = np.lexsort((-scores, labels))
    ordered = labels[order]
    ranks = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return Candidates(image, regions, ordered, ranks, scores[order], order)


def select(candidates: Candidates, chosen: Bools) -> Candidates:
    """Return some candidates, bool [D]."""
    given = candidates
    return Candidates(
        given.image,
        given.regions,
        given.labels[chosen],
        given.ranks[chosen],
        given.scores[chosen],
        given.detections[chosen],
    )


def unmatched(candidates: Candidates) -> MatchedDetections:
    """Return candidates as if there were no objects: those outside a range of size are ignored."""
    given = candidates
    areas = given.regions[given.detections].areas
    shape = (len(RANGES), len(THRESHOLDS), len(given.labels))
    return MatchedDetections(
        given.labels,
        given.ranks,
        given.scores,
        right=np.zeros(shape, np.bool_),
        ignored=np.repeat(_outside(areas)[:, None], len(THRESHOLDS), axis=1),
        images=np.full(len(given.labels), given.image),
        detections=given.detections,
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
        ignored = crowd | _outside(truth.areas[chosen])
        own = slice(*np.searchsorted(judged.labels, [label, label + 1]).tolist())
        if own.start < own.stop:
            claims = _claims(regions[judged.detections[own]], truth.regions[chosen], ignored, crowd)
            _note(judged, own, claims, ignored, chosen)
        yield label, (~ignored).sum(1)


def are_known(labels: Indices, known: Indices) -> Bools:
    """Return which labels are among those known, which are in order: by bisection, as a set may have 10,000 classes."""
    if not len(known):
        return np.zeros(labels.shape, np.bool_)
    nearest = known[np.minimum(np.searchsorted(known, labels), len(known) - 1)]
    same: Bools = nearest == labels
    return same


def _claims(detected: Regions, objects: Regions, ignored: Bools, crowd: Bools) -> Indices:
    """Return the matched object of each detection, int64 [S, T, D]."""
    overlap = detected.overlaps(objects)
    if crowd.any():
        overlap = np.where(crowd, detected.overlaps_of_crowds(objects), overlap)
    rules = np.repeat(ignored, len(THRESHOLDS), axis=0)
    claims = claim_best_free(overlap, _RULES, rules, crowd)
    return claims.reshape(len(RANGES), len(THRESHOLDS), -1)


def _note(judged: MatchedDetections, own: slice, claims: Indices, ignored: Bools, chosen: Indices) -> None:
    taken = claims != NOBODY
    # A detection without an object has the index -1, which is that of the False that is appended.
    of_ignored = with_nobody(ignored)[_SIZES, claims]
    judged.right[..., own] = taken & ~of_ignored
    judged.ignored[..., own] = np.where(taken, of_ignored, judged.ignored[..., own])
    judged.objects[:, own] = np.append(chosen, NOBODY)[claims[0]]


def _outside(areas: Floats) -> Bools:
    """Return whether areas [N] are outside each range of size, [S, N]."""
    return np.asarray((areas < RANGES[:, :1]) | (areas > RANGES[:, 1:]))
