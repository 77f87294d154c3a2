"""Which detection finds which object, by COCO's rule: average precision, and what became of every detection and object.

Dimensions: K classes, T overlap thresholds, D detections, G objects, E events, I images, N detections of one class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boxwright.evaluation.metrics.average_precision import precision_and_recall, sampled
from boxwright.evaluation.metrics.matching import NOBODY, claim_best_free, overlaps, overlaps_of_crowds
from boxwright.report.tables import Bools, Floats, Indices, Tables
from boxwright.report.tide import FOUND, MISSED, NAMES, RIGHT, error_types

NOTHING = -1
# Types of events, by number: a right detection, then TIDE's errors.
TYPES = ("right", *NAMES)

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
    detections, objects = tables.detections, tables.objects
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
    detections, objects = tables.detections, tables.objects
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


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Events: a right detection, a wrong one, or an object that was not found; image by image.

    Attributes:
        images: int64 [E].
        types: int64 [E]; indices into `TYPES`.
        detections: int64 [E]; the index of the detection; -1 for an object that none is near.
        objects: int64 [E]; the index of the object that is found, taken for another class, or missed; -1 for none.
        about: int64 [E]; the object that a wrong detection is about, which may be found by another; -1 for none.
    """

    images: Indices
    types: Indices
    detections: Indices
    objects: Indices
    about: Indices

    def __len__(self) -> int:
        return len(self.images)


def compute_outcomes(tables: Tables, matching: Matching, threshold: float) -> Outcomes:
    """Return the events of the detections of at least a score, at an overlap of 0.5."""
    detections, objects = tables.detections, tables.objects
    kept = np.flatnonzero(matching.counted[0] & (detections.scores >= threshold))
    counted = np.flatnonzero(~objects.crowd)
    every = np.arange(len(tables.ids) + 1)
    kept_at, object_at = (
        np.searchsorted(images, every) for images in (detections.images[kept], objects.images[counted])
    )
    parts = []
    for image in range(len(tables.ids)):
        mine, theirs = kept[kept_at[image] : kept_at[image + 1]], counted[object_at[image] : object_at[image + 1]]
        parts.append(_image_events(tables, matching, mine, theirs))
    rows = np.concatenate([np.zeros((0, 4), np.int64), *parts])
    images = np.where(rows[:, 1] != NOTHING, detections.images[rows[:, 1]] if len(detections) else 0, 0)
    images = np.where(rows[:, 1] == NOTHING, objects.images[rows[:, 2]] if len(objects) else 0, images)
    return Outcomes(images, rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3])


def _image_events(tables: Tables, matching: Matching, detections: Indices, objects: Indices) -> Indices:
    """Return the type, detection, object and object it is about of one image's events, int64 [E, 4]."""
    right = matching.right[0, detections]
    matched = matching.objects[0, detections]
    wrong, unfound = detections[~right], objects[~np.isin(objects, matched[right])]
    rows = [np.stack([np.zeros(right.sum(), np.int64), detections[right], matched[right], matched[right]], 1)]
    types, about = _wrong_types(tables, wrong, objects, np.isin(objects, matched[right]))
    pairs = _pairs(tables, wrong, unfound)
    taken = np.array([pairs.get(number, NOTHING) for number in wrong.tolist()], np.int64)
    rows.append(np.stack([types + 1, wrong, taken, np.where(taken != NOTHING, taken, about)], 1))
    missed = unfound[~np.isin(unfound, taken)]
    nothing = np.full(len(missed), NOTHING)
    rows.append(np.stack([np.full(len(missed), MISSED + 1), nothing, missed, missed], 1))
    return np.concatenate(rows)


def _wrong_types(tables: Tables, wrong: Indices, objects: Indices, used: np.ndarray) -> tuple[Indices, Indices]:
    """Return the type of error of each wrong detection, and the index of the object that it is about."""
    if not len(wrong) or not len(objects):
        return np.full(len(wrong), NAMES.index("background")), np.full(len(wrong), NOTHING)
    overlap = overlaps(tables.detections.boxes[wrong], tables.objects.boxes[objects])
    same = tables.detections.labels[wrong][:, None] == tables.objects.labels[objects][None, :]
    types, about = error_types(overlap, same, used)
    return types, np.where(about == RIGHT, NOTHING, objects[about])


def _pairs(tables: Tables, wrong: Indices, unfound: Indices) -> dict[int, int]:
    """Return which wrong detection lies on which unfound object, by the largest overlap first, of 0.5 or more.

    Their classes differ, or they would have been matched.
    """
    overlap = overlaps(tables.detections.boxes[wrong], tables.objects.boxes[unfound])
    rows, columns = np.nonzero(overlap >= FOUND)
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for number in np.argsort(-overlap[rows, columns], kind="stable").tolist():
        detection, thing = int(wrong[rows[number]]), int(unfound[columns[number]])
        if detection not in pairs and thing not in taken:
            pairs[detection] = thing
            taken.add(thing)
    return pairs


def confusion(tables: Tables, outcomes: Outcomes) -> Indices:
    """Return how often each class (or nothing, last) was found as each class (or not at all, last), [K + 1, K + 1]."""
    position = np.searchsorted(tables.classes, tables.objects.labels)
    class_positions = np.searchsorted(tables.classes, tables.detections.labels)
    count = len(tables.classes)
    truth = np.append(position, count)[np.where(outcomes.objects == NOTHING, len(position), outcomes.objects)]
    seen = np.append(class_positions, count)[
        np.where(outcomes.detections == NOTHING, len(class_positions), outcomes.detections)
    ]
    matrix = np.zeros((count + 1, count + 1), np.int64)
    np.add.at(matrix, (truth, seen), 1)
    return matrix
