"""Average precision: the area under the curve of precision over recall, by each benchmark's definition.

Dimensions: N detections of all images, best first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def precision_and_recall(gains: Floats, losses: Floats, count: float) -> tuple[Floats, Floats]:
    """Return precision and recall after each detection, float64 […, N] each.

    Args:
        gains: float64 […, N]; each detection's contribution to true positives.
        losses: float64 […, N]; each detection's contribution to false positives.
    """
    right, wrong = np.cumsum(gains, axis=-1), np.cumsum(losses, axis=-1)
    # COCO's epsilon, for detections before the first that counts.
    return right / np.maximum(right + wrong, np.spacing(1)), right / count


def _envelope(precision: Floats) -> Floats:
    """Raise each precision to the maximum at any higher recall."""
    return np.asarray(np.maximum.accumulate(precision[::-1])[::-1])


def all_points(precision: Floats, recall: Floats, low: float = 0.0, high: float = 1.0) -> float:
    """Return the exact integral of the envelope (PASCAL VOC from 2010 on); 0 without points.

    Args:
        precision: float64 [N].
        recall: float64 [N], ascending.
        low: The minimum recall of the points that are used.
    """
    inside = (recall >= low) & (recall <= high)
    if not inside.any():
        return 0.0
    # TF's: the curve goes on to recall 1 at a precision of 0, whatever part of it is used.
    steps = np.concatenate([[0.0], recall[inside], [1.0]])
    heights = _envelope(np.concatenate([[0.0], precision[inside], [0.0]]))
    return float(np.sum(np.diff(steps) * heights[1:]))


def eleven_points(precision: Floats, recall: Floats) -> float:
    """Return the mean of the envelope at recalls 0, 0.1, … 1 (PASCAL VOC 2007; Everingham et al., 2010, 4.2)."""
    return float(sampled(precision, recall, np.arange(11) / 10).mean())


def sampled(precision: Floats, recall: Floats, points: Floats) -> Floats:
    """Return the envelope at some recalls (COCO's 101 points), float64 [P]; 0 beyond the last recall.

    Args:
        precision: float64 [N].
        recall: float64 [N], ascending.
        points: float64 [P].
    """
    heights = np.concatenate([_envelope(precision), [0.0]])
    return np.asarray(heights[np.searchsorted(recall, points, side="left")])


def sample_precision(right: NDArray[np.bool_], counted: NDArray[np.bool_], objects: float, points: Floats) -> Floats:
    """Return `sampled` of the detections that count, without their curves, float64 [P].

    Precision falls until the next right detection, so that right ones alone make the envelope.

    Args:
        right: bool [N], best first.
        counted: bool [N]; those that are right or wrong.
        objects: How many there are.
        points: float64 [P].
    """
    places = np.cumsum(counted)[right]
    matches = np.arange(1, len(places) + 1, dtype=np.float64)
    return sampled(matches / places, matches / objects, points)
