"""The matching core of all metrics: which detection of an image is matched with which object.

Dimensions: D detections of one class in one image, best first; G objects; R simultaneous rules (thresholds, ranges of
area).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NOBODY = -1
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.int64]


def _intersections(boxes: Floats, others: Floats) -> Floats:
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    sides = np.maximum(high - low, 0)
    return np.asarray(sides[..., 0] * sides[..., 1])


def _areas(boxes: Floats) -> Floats:
    return np.asarray((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))


def overlaps(detections: Floats, objects: Floats) -> Floats:
    """Return the intersection over union of all pairs, float64 [D, G]; 0 for disjoint boxes.

    Args:
        detections: float64 [D, 4], xyxy in any unit.
        objects: float64 [G, 4].
    """
    shared = _intersections(detections, objects)
    union = _areas(detections)[:, None] + _areas(objects)[None, :] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)


def overlaps_of_crowds(detections: Floats, objects: Floats) -> Floats:
    """Return the intersection over the detection's own area, float64 [D, G], for objects that stand for many.

    Args:
        detections: float64 [D, 4], xyxy in any unit.
        objects: float64 [G, 4].
    """
    shared = _intersections(detections, objects)
    return np.divide(shared, _areas(detections)[:, None], out=np.zeros_like(shared), where=shared > 0)


def claim_best(overlap: Floats, threshold: float) -> Indices:
    """Match each detection with the object that it overlaps most, matched or not (PASCAL's rule).

    Args:
        overlap: float64 [D, G].

    Returns:
        int64 [D]: the object, or NOBODY; the first of ties.
    """
    if overlap.shape[1] == 0:
        return np.full(len(overlap), NOBODY, np.int64)
    best = overlap.argmax(axis=1)
    return np.where(overlap[np.arange(len(overlap)), best] >= threshold, best, NOBODY)


def claim_best_free(overlap: Floats, thresholds: Floats, ignored: Bools, shared: Bools) -> Indices:
    """Match each detection, best first, with the unmatched object that it overlaps most (COCO's rule).

    Objects that count are preferred to ignored ones.

    Args:
        overlap: float64 [D, G].
        thresholds: float64 [R]; the minimum overlap under each rule.
        ignored: bool [R, G]; objects that do not count under each rule.
        shared: bool [G]; objects that any number of detections may match (crowds).

    Returns:
        int64 [R, D]: the object, or NOBODY; the last of ties.
    """
    rules, count = len(thresholds), overlap.shape[1]
    claims = np.full((rules, len(overlap)), NOBODY, np.int64)
    if count == 0:
        return claims
    # COCO's order under each rule: objects that count first; the last of ties wins.
    order = np.argsort(ignored, axis=1, kind="stable")
    ranked_ignored = np.take_along_axis(ignored, order, axis=1)
    free = np.ones((rules, count), np.bool_)
    # COCO's, so that rounding cannot keep a perfect overlap below a threshold of 1.
    limits = np.minimum(thresholds, 1 - 1e-10)[:, None]
    rows = np.arange(rules)
    # A detection that reaches no threshold matches nothing and takes nothing from others.
    for number in np.flatnonzero(overlap.max(axis=1) >= limits.min()):
        ranked = overlap[number][order]
        possible = (ranked >= limits) & (free | shared[order])
        counting = possible & ~ranked_ignored
        pool = np.where(counting.any(axis=1, keepdims=True), counting, possible)
        value = np.where(pool, ranked, -1.0)
        chosen = count - 1 - value[:, ::-1].argmax(axis=1)
        matched = pool[rows, chosen]
        claims[matched, number] = order[rows, chosen][matched]
        free[rows[matched], chosen[matched]] = False
    return claims
