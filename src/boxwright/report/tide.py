"""Errors by type, and the average precision that fixing each type would bring.

As TIDE defines them (Bolya et al., "TIDE: A General Toolbox for Identifying Object Detection Errors", 2020), and as
its package `tidecv` 1.0.1 computes them, where the paper leaves room: an image keeps its 100 best detections of all
classes together; crowds are no objects, and detections without a match that overlap one of their class by more than
the threshold do not count, yet have an error's type; classes with detections alone count with an average precision
of 0. COCO differs in the first (100 of each class) and the last (such classes do not count), and in the last bit of
some of the 101 recalls.

Dimensions: D detections, G objects of one image.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from boxwright.evaluation.metrics.average_precision import precision_and_recall, sampled
from boxwright.evaluation.metrics.matching import overlaps, overlaps_of_crowds
from boxwright.report.tables import Bools, DetectionTable, Floats, Indices, ObjectTable, Tables

CLASSIFICATION, LOCALIZATION, BOTH, DUPLICATE, BACKGROUND, MISSED = range(6)
NAMES = ("classification", "localization", "both", "duplicate", "background", "missed")
RIGHT = -1
_MOST = 100
# From the first overlap with an object on a detection finds it; below the second it has nothing to do with it.
FOUND, _NEAR = 0.5, 0.1
# As the package divides; some of COCO's, of linspace, differ in the last bit, by which they pass over an equal recall.
_RECALLS = np.arange(101) / 100


@dataclass(frozen=True, eq=False)
class ImageErrors:
    """The errors of one image; its detections are ordered by score.

    Attributes:
        types: int64 [D]; `RIGHT`, or a type of error.
        ignored: bool [D]; whether a detection is in a crowd, and does not count.
        objects: int64 [D]; the object that a detection finds, or would find without its error; -1 for none.
        taken: int64 [G]; the detection that finds each object; -1 for none.
    """

    types: Indices
    ignored: Bools
    objects: Indices
    taken: Indices


def image_errors(detections: DetectionTable, objects: ObjectTable, crowds: ObjectTable) -> ImageErrors:
    """Return the errors of one image's detections, best first; `crowds` are not among the objects."""
    overlap = overlaps(detections.boxes, objects.boxes)
    same = detections.labels[:, None] == objects.labels[None, :]
    matched, taken = _match(overlap * same)
    ignored = (matched < 0) & _in_crowds(detections, crowds)
    types = np.full(len(detections), BACKGROUND, np.int64)
    near = np.full(len(detections), -1, np.int64)
    if len(objects) and len(detections):
        types, near = error_types(overlap, same, taken >= 0)
    types[matched >= 0] = RIGHT
    return ImageErrors(types, ignored, np.where(matched >= 0, matched, near), taken)


def _match(overlap: Floats) -> tuple[Indices, Indices]:
    """Return each detection's object and each object's detection; the first of ties."""
    matched, taken = np.full(overlap.shape[0], -1, np.int64), np.full(overlap.shape[1], -1, np.int64)
    free = overlap.copy()
    for number in np.flatnonzero(overlap.max(axis=1, initial=0.0) >= FOUND):
        best = int(free[number].argmax())
        if free[number, best] >= FOUND:
            matched[number], taken[best] = best, number
            free[:, best] = 0
    return matched, taken


def _in_crowds(detections: DetectionTable, crowds: ObjectTable) -> Bools:
    within = overlaps_of_crowds(detections.boxes, crowds.boxes) > FOUND
    return np.asarray((within & (detections.labels[:, None] == crowds.labels[None, :])).any(axis=1))


def error_types(overlap: Floats, same: Bools, used: Bools) -> tuple[Indices, Indices]:
    """Return the type of error of each detection if it is wrong, and the object that it is about; -1 for none.

    Args:
        overlap: float64 [D, G]; of all pairs, with at least one of each.
        same: bool [D, G]; whether the classes are the same.
        used: bool [G]; whether an object is found.
    """
    of_class, of_others, of_used = overlap * same, overlap * ~same, overlap * same * used
    rows = np.arange(len(overlap))
    own, other = of_class.argmax(axis=1), of_others.argmax(axis=1)
    # In the package's order: the first that holds.
    conditions = [
        (of_class[rows, own] >= _NEAR) & (of_class[rows, own] <= FOUND),
        of_others[rows, other] >= FOUND,
        of_used.max(axis=1) >= FOUND,
        overlap.max(axis=1) <= _NEAR,
    ]
    types = np.select(conditions, [LOCALIZATION, CLASSIFICATION, DUPLICATE, BACKGROUND], BOTH)
    near = np.select(
        [types == LOCALIZATION, types == CLASSIFICATION, types == DUPLICATE], [own, other, of_used.argmax(1)], -1
    )
    return types, near


@dataclass(frozen=True)
class Tide:
    """Counts of errors by type, and the gain in average precision (0 to 1) by fixing them; both by name.

    `gains` also has "false positives" (all of them scored 0) and "false negatives" (objects that were not found do not
    count).
    """

    average_precision: float
    counts: dict[str, int]
    gains: dict[str, float]


@dataclass
class _CurvePoint:
    """One detection on a class's curve: its score, whether it is right, and what fixing its error makes of it.

    Attributes:
        original: The class; None for a detection that does not count.
        fixed: The class in which it is right once fixed; None if it is removed.
    """

    score: float
    right: bool
    type: int
    original: int | None
    fixed: int | None


@dataclass
class _ErrorTotals:
    """All detections in the package's order, and the objects of each class."""

    points: list[_CurvePoint] = field(default_factory=list)
    objects: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    unmatched: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    missed: dict[int, int] = field(default_factory=lambda: defaultdict(int))


def tide(tables: Tables) -> Tide:
    """Return the errors of all detections by type."""
    totals = _ErrorTotals()
    for detections, objects, crowds in by_image(tables):
        best = detections[:_MOST]
        _add(totals, image_errors(best, objects, crowds), best, objects)
    average = _mean_ap(totals.points, totals.objects)
    gains = {}
    for number, name in enumerate(NAMES):
        # In binning AP, a fix can lose a little.
        gains[name] = max(_fixed(totals, number) - average, 0.0)
    perfect = [
        _CurvePoint(float(point.right), point.right, point.type, point.original, point.fixed)
        for point in _errors_first(totals.points)
    ]
    gains["false positives"] = _mean_ap(perfect, totals.objects) - average
    left = {label: count - totals.unmatched[label] for label, count in totals.objects.items()}
    gains["false negatives"] = _mean_ap(_errors_first(totals.points), left) - average
    counts = {name: sum(point.type == number for point in totals.points) for number, name in enumerate(NAMES)}
    counts["missed"] = sum(totals.missed.values())
    return Tide(average, counts, gains)


def by_image(tables: Tables) -> Iterable[tuple[DetectionTable, ObjectTable, ObjectTable]]:
    """Yield each image's detections, objects and crowds."""
    every = np.arange(len(tables.ids) + 1)
    detections_at, objects_at = (np.searchsorted(table.images, every) for table in (tables.detections, tables.objects))
    for image in range(len(tables.ids)):
        objects = tables.objects[objects_at[image] : objects_at[image + 1]]
        yield (
            tables.detections[detections_at[image] : detections_at[image + 1]],
            objects[~objects.crowd],
            objects[objects.crowd],
        )


def _add(totals: _ErrorTotals, errors: ImageErrors, detections: DetectionTable, objects: ObjectTable) -> None:
    """Add one image to the totals."""
    # The best scored of the errors about an undetected object is fixed; the others vanish.
    usable: dict[int, int] = {}
    for number in np.flatnonzero(np.isin(errors.types, (LOCALIZATION, CLASSIFICATION))).tolist():
        about = int(errors.objects[number])
        if errors.taken[about] < 0:
            usable.setdefault(about, number)
    for number in range(len(detections)):
        kind, label = int(errors.types[number]), int(detections.labels[number])
        about = int(errors.objects[number])
        fixes = kind in (LOCALIZATION, CLASSIFICATION) and usable.get(about) == number
        fixed = int(objects.labels[about]) if fixes else None
        original = None if errors.ignored[number] else label
        totals.points.append(_CurvePoint(float(detections.scores[number]), kind == RIGHT, kind, original, fixed))
    for about, label in enumerate(objects.labels.tolist()):
        totals.objects[label] += 1
        if errors.taken[about] < 0:
            totals.unmatched[label] += 1
            totals.missed[label] += about not in usable


def _errors_first(points: list[_CurvePoint]) -> list[_CurvePoint]:
    """Return the points in the package's order after a fix, which decides among equal scores."""
    return [point for point in points if not point.right] + [point for point in points if point.right]


def _fixed(totals: _ErrorTotals, kind: int) -> float:
    """Return the mean average precision with one type of error fixed."""
    if kind == MISSED:
        objects = {label: count - totals.missed[label] for label, count in totals.objects.items()}
        return _mean_ap(_errors_first(totals.points), objects)
    points = [
        _CurvePoint(point.score, point.fixed is not None, kind, point.fixed, None) if point.type == kind else point
        for point in totals.points
    ]
    # Still by what they were: a fixed error stays where it was collected.
    order = [point for point, was in zip(points, totals.points, strict=True) if not was.right]
    order += [point for point, was in zip(points, totals.points, strict=True) if was.right]
    return _mean_ap(order, totals.objects)


def _mean_ap(points: list[_CurvePoint], objects: dict[int, int]) -> float:
    """Return the mean over the classes that have detections or objects; 0 for none."""
    by_class: dict[int, tuple[list[float], list[bool]]] = defaultdict(lambda: ([], []))
    for point in points:
        if point.original is not None:
            scores, right = by_class[point.original]
            scores.append(point.score)
            right.append(point.right)
    labels = {*by_class, *(label for label, count in objects.items() if count)}
    values = [_ap(*by_class[label], objects.get(label, 0)) for label in labels]
    return float(np.mean(values)) if values else 0.0


def _ap(scores: list[float], right: list[bool], count: int) -> float:
    if not count:
        return 0.0
    order = np.argsort(-np.array(scores), kind="stable")
    gains = np.array(right, np.float64)[order]
    precision, recall = precision_and_recall(gains, 1 - gains, count)
    return float(sampled(precision, recall, _RECALLS).mean())
