"""The matching core of all metrics: which detection of an image found which object.

Dimensions: D detections of one class in one image, best first; G objects; R rules at once (thresholds,
ranges of area).
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
    """Intersection over union of all pairs.

    Args:
        detections: float64 [D, 4], xyxy in any unit.
        objects: float64 [G, 4].

    Returns:
        float64 [D, G]; 0 where the boxes do not meet.
    """
    shared = _intersections(detections, objects)
    union = _areas(detections)[:, None] + _areas(objects)[None, :] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)


def overlaps_of_crowds(detections: Floats, objects: Floats) -> Floats:
    """Intersection over the detection's own area, for objects that stand for many.

    Args:
        detections: float64 [D, 4], xyxy in any unit.
        objects: float64 [G, 4].

    Returns:
        float64 [D, G]; 0 where the boxes do not meet.
    """
    shared = _intersections(detections, objects)
    return np.divide(shared, _areas(detections)[:, None], out=np.zeros_like(shared), where=shared > 0)


def claim_best(overlap: Floats, threshold: float) -> Indices:
    """Let each detection claim the object that it overlaps most, taken or not (PASCAL's rule).

    Args:
        overlap: float64 [D, G].
        threshold: The least overlap of a claim.

    Returns:
        int64 [D]: the object, or NOBODY. Of objects overlapped alike the first is claimed.
    """
    if overlap.shape[1] == 0:
        return np.full(len(overlap), NOBODY, np.int64)
    best = overlap.argmax(axis=1)
    return np.where(overlap[np.arange(len(overlap)), best] >= threshold, best, NOBODY)


def claim_best_free(overlap: Floats, thresholds: Floats, ignored: Bools, shared: Bools) -> Indices:
    """Let each detection, best first, claim the object that it overlaps most of those still free (COCO's rule).

    An object that counts is preferred to any that is ignored.

    Args:
        overlap: float64 [D, G].
        thresholds: float64 [R]; the least overlap of a claim under each rule.
        ignored: bool [R, G]; objects that do not count under each rule.
        shared: bool [G]; objects that any number of detections may claim (crowds).

    Returns:
        int64 [R, D]: the object, or NOBODY. Of objects overlapped alike the last is claimed.
    """
    rules, count = len(thresholds), overlap.shape[1]
    claims = np.full((rules, len(overlap)), NOBODY, np.int64)
    if count == 0:
        return claims
    # COCO's order: objects that count first, each rule in its own; the last of equals wins.
    order = np.argsort(ignored, axis=1, kind="stable")
    ranked_ignored = np.take_along_axis(ignored, order, axis=1)
    free = np.ones((rules, count), np.bool_)
    limits = np.minimum(thresholds, 1 - 1e-10)[:, None]
    rows = np.arange(rules)
    for number in np.flatnonzero(overlap.max(axis=1) >= limits.min()):
        ranked = overlap[number][order]
        possible = (ranked >= limits) & (free | shared[order])
        counting = possible & ~ranked_ignored
        pool = np.where(counting.any(axis=1, keepdims=True), counting, possible)
        value = np.where(pool, ranked, -1.0)
        chosen = count - 1 - value[:, ::-1].argmax(axis=1)
        found = pool[rows, chosen]
        claims[found, number] = order[rows, chosen][found]
        free[rows[found], chosen[found]] = False
    return claims
