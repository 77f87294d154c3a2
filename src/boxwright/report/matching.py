"""Which detection finds which object, by COCO's rule, and average precision from that.

Dimensions: K classes, T overlap thresholds, D detections, I images, N detections of one class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boxwright.evaluation.metrics.average_precision import precision_and_recall, sampled
from boxwright.evaluation.metrics.matching import NOBODY, claim_best_free, overlaps, overlaps_of_crowds
from boxwright.report.tables import Bools, Floats, Indices, Tables

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
# COCO counts so many detections of a class in an image, the best ones.
MOST = 100


@dataclass(frozen=True, eq=False)
class Matching:
    """The match of each detection at each overlap.

    Attributes:
        right: bool [T, D]; whether it finds an object that counts.
        counted: bool [T, D]; whether it counts at all: not beyond the best 100 of its class and image, nor in a crowd.
        objects: int64 [T, D]; the index of the object, a crowd included; -1 for none.
    """

    right: Bools
    counted: Bools
    objects: Indices


def match(tables: Tables) -> Matching:
    """Match all detections with the objects of their classes."""
    detections, objects = tables.found, tables.objects
    shape = (len(THRESHOLDS), len(detections))
    claims = np.full(shape, NOBODY, np.int64)
    width = int(tables.classes.max()) + 1
    keys, object_keys = detections.images * width + detections.labels, objects.images * width + objects.labels
    order, object_order = np.argsort(keys, kind="stable"), np.argsort(object_keys, kind="stable")
    ranks = np.empty(len(detections), np.int64)
    ranks[order] = np.arange(len(detections)) - np.searchsorted(keys[order], keys[order])
    groups, firsts = np.unique(object_keys[object_order], return_index=True)
    starts = np.searchsorted(keys[order], groups, "left")
    stops = np.searchsorted(keys[order], groups, "right")
    ends = np.append(firsts, len(objects))[1:]
    bounds = np.stack([starts, stops, firsts, ends], axis=1).astype(np.int64)
    for start, stop, first, end in bounds.tolist():
        if start == stop:
            continue
        mine, theirs = order[start : min(stop, start + MOST)], object_order[first:end]
        crowd = objects.crowd[theirs]
        overlap = overlaps(detections.boxes[mine], objects.boxes[theirs])
        if crowd.any():
            overlap = np.where(crowd, overlaps_of_crowds(detections.boxes[mine], objects.boxes[theirs]), overlap)
        rows = claim_best_free(overlap, THRESHOLDS, np.tile(crowd, (len(THRESHOLDS), 1)), crowd)
        claims[:, mine] = np.append(theirs, NOBODY)[rows]
    taken = claims != NOBODY
    in_crowd = taken & np.append(objects.crowd, False)[claims]
    return Matching(taken & ~in_crowd, (ranks < MOST) & ~in_crowd, claims)


@dataclass(frozen=True, eq=False)
class ClassCurve:
    """What is needed of one class for its average precision, best detection first.

    Attributes:
        gains: float64 [T, N]; 1 where a detection finds an object.
        losses: float64 [T, N]; 1 where it counts and finds none.
        images: int64 [N].
        objects: float64 [I]; how many objects of the class each image has.
        scores: float64 [N].
        rows: int64 [N]; the indices of the detections.
    """

    gains: Floats
    losses: Floats
    images: Indices
    objects: Floats
    scores: Floats
    rows: Indices


def class_curves(tables: Tables, matching: Matching) -> list[ClassCurve]:
    """Return the curve of each class, in the order of the classes."""
    detections, objects = tables.found, tables.objects
    counted = objects.images[~objects.crowd], objects.labels[~objects.crowd]
    by_label = np.argsort(detections.labels, kind="stable")
    bounds = np.searchsorted(detections.labels[by_label], [[label, label + 1] for label in tables.classes.tolist()])
    curves = []
    for label, (start, stop) in zip(tables.classes.tolist(), bounds.tolist(), strict=True):
        own = by_label[start:stop]
        own = own[np.argsort(-detections.scores[own], kind="stable")]
        right, known = matching.right[:, own], matching.counted[:, own]
        curves.append(
            ClassCurve(
                gains=(right & known).astype(np.float64),
                losses=(~right & known).astype(np.float64),
                images=detections.images[own],
                objects=np.bincount(counted[0][counted[1] == label], minlength=len(tables.ids)).astype(np.float64),
                scores=detections.scores[own],
                rows=own,
            )
        )
    return curves


def average_precisions(curves: list[ClassCurve], weights: Floats | None = None) -> Floats:
    """Return COCO's average precision of each class at each overlap, float64 [K, T]; NaN without objects.

    Args:
        weights: float64 [I]; how often each image counts; None for once.
    """
    return np.stack([_class_ap(curve, weights) for curve in curves])


def _class_ap(curve: ClassCurve, weights: Floats | None) -> Floats:
    count = float(curve.objects.sum() if weights is None else curve.objects @ weights)
    if not count:
        return np.full(len(curve.gains), np.nan)
    # The curve is highest where an object is found: other places need no envelope.
    kept = np.flatnonzero(curve.gains.any(axis=0))
    if not len(kept):
        return np.zeros(len(curve.gains))
    gains, losses = curve.gains, curve.losses
    if weights is not None:
        gains, losses = gains * weights[curve.images], losses * weights[curve.images]
    precision, recall = precision_and_recall(gains, losses, count)
    pairs = zip(precision[:, kept], recall[:, kept], strict=True)
    return np.array([sampled(p, r, RECALLS).mean() for p, r in pairs])


def mean_ap(values: Floats) -> float:
    """Return the mean of the average precisions that are known; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def sampled_precision(curve: ClassCurve) -> NDArray[np.float64]:
    """Return the precision at COCO's 101 recalls, float64 [T, 101]; NaN without objects."""
    count = float(curve.objects.sum())
    if not count:
        return np.full((len(curve.gains), len(RECALLS)), np.nan)
    pairs = zip(*precision_and_recall(curve.gains, curve.losses, count), strict=True)
    return np.stack([sampled(p, r, RECALLS) for p, r in pairs])
