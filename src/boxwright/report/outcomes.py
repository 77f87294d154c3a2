"""What became of every detection of at least a score, and of every object: the events that a report shows.

Dimensions: E events, D detections, G objects, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boxwright.evaluation.metrics.matching import overlaps
from boxwright.report.matching import Matching
from boxwright.report.tables import Indices, Tables
from boxwright.report.tide import FOUND, MISSED, NAMES, RIGHT, error_types

NOTHING = -1
# Types of events, by number: a right detection, then TIDE's errors.
TYPES = ("right", *NAMES)


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Events: a right detection, a wrong one, or an object that was not found; image by image.

    Attributes:
        images: int64 [E].
        types: int64 [E]; indices into `TYPES`.
        found: int64 [E]; the index of the detection; -1 for an object that none is near.
        objects: int64 [E]; the index of the object that is found, taken for another class, or missed; -1 for none.
        about: int64 [E]; the object that a wrong detection is about, which may be found by another; -1 for none.
    """

    images: Indices
    types: Indices
    found: Indices
    objects: Indices
    about: Indices

    def __len__(self) -> int:
        return len(self.images)


def compute_outcomes(tables: Tables, matching: Matching, threshold: float) -> Outcomes:
    """Return the events of the detections of at least a score, at an overlap of 0.5."""
    detections, objects = tables.found, tables.objects
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
    overlap = overlaps(tables.found.boxes[wrong], tables.objects.boxes[objects])
    same = tables.found.labels[wrong][:, None] == tables.objects.labels[objects][None, :]
    types, about = error_types(overlap, same, used)
    return types, np.where(about == RIGHT, NOTHING, objects[about])


def _pairs(tables: Tables, wrong: Indices, unfound: Indices) -> dict[int, int]:
    """Return which wrong detection lies on which unfound object, by the largest overlap first, of 0.5 or more.

    Their classes differ, or they would have been matched.
    """
    overlap = overlaps(tables.found.boxes[wrong], tables.objects.boxes[unfound])
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
    found_position = np.searchsorted(tables.classes, tables.found.labels)
    count = len(tables.classes)
    truth = np.append(position, count)[np.where(outcomes.objects == NOTHING, len(position), outcomes.objects)]
    seen = np.append(found_position, count)[np.where(outcomes.found == NOTHING, len(found_position), outcomes.found)]
    matrix = np.zeros((count + 1, count + 1), np.int64)
    np.add.at(matrix, (truth, seen), 1)
    return matrix
