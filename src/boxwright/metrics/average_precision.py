"""Average precision: the area under the curve of precision over recall, as each benchmark takes it.

Dimensions: N detections of all images, best first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def precision_and_recall(gains: Floats, losses: Floats, count: float) -> tuple[Floats, Floats]:
    """Compute both after each detection.

    Args:
        gains: float64 […, N]; what each detection adds to those that are right.
        losses: float64 […, N]; what each adds to those that are wrong.

    Returns:
        Precision and recall, float64 […, N] each.
    """
    right, wrong = np.cumsum(gains, axis=-1), np.cumsum(losses, axis=-1)
    return right / np.maximum(right + wrong, np.spacing(1)), right / count


def _envelope(precision: Floats) -> Floats:
    """Raise each point to the best precision at any higher recall."""
    return np.asarray(np.maximum.accumulate(precision[::-1])[::-1])


def all_points(precision: Floats, recall: Floats, low: float = 0.0, high: float = 1.0) -> float:
    """Integrate the envelope exactly (PASCAL VOC from 2010 on).

    Args:
        precision: float64 [N].
        recall: float64 [N], rising.
        low: Only points of at least this recall are taken.

    Returns:
        The area; 0 without any point.
    """
    inside = (recall >= low) & (recall <= high)
    if not inside.any():
        return 0.0
    steps = np.concatenate([[0.0], recall[inside], [1.0]])
    heights = _envelope(np.concatenate([[0.0], precision[inside], [0.0]]))
    return float(np.sum(np.diff(steps) * heights[1:]))


def eleven_points(precision: Floats, recall: Floats) -> float:
    """Average the envelope at recalls 0, 0.1, … 1 (PASCAL VOC 2007; Everingham et al., 2010, section 4.2).

    Args:
        precision: float64 [N].
        recall: float64 [N], rising.
    """
    return float(sampled(precision, recall, np.arange(11) / 10).mean())


def sampled(precision: Floats, recall: Floats, points: Floats) -> Floats:
    """Read the envelope at some recalls (COCO's 101 points).

    Args:
        precision: float64 [N].
        recall: float64 [N], rising.
        points: float64 [P].

    Returns:
        float64 [P]; 0 beyond the last recall.
    """
    heights = np.concatenate([_envelope(precision), [0.0]])
    return np.asarray(heights[np.searchsorted(recall, points, side="left")])
