"""Precision, recall and F1 against the score threshold; the threshold is chosen on one half and judged on the other.

Dimensions: N detections of one or all classes, I images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boxwright.report.matching import ClassCurve
from boxwright.report.tables import Bools, Floats

# Scores at which the curves are drawn.
GRID = np.linspace(0.0, 1.0, 101)


@dataclass(frozen=True)
class ThresholdMetrics:
    """Precision, recall and F1 of the detections of at least a score; NaN where there is nothing to divide by."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class ChosenThreshold:
    """A threshold, and how good it is on the half that it was chosen on, and on the other."""

    threshold: float
    chosen_on: ThresholdMetrics
    judged_on: ThresholdMetrics


@dataclass(frozen=True, eq=False)
class ScoreCurve:
    """Detections by descending score.

    Attributes:
        scores: float64 [N].
        right: float64 [N]; how many of the first detections find an object.
        wrong: float64 [N]; how many do not.
        objects: How many objects there are.
    """

    scores: Floats
    right: Floats
    wrong: Floats
    objects: float

    def at(self, threshold: float) -> ThresholdMetrics:
        """Return the numbers at a threshold."""
        count = int(np.searchsorted(-self.scores, -threshold, "right"))
        right, wrong = (float(sums[count - 1]) if count else 0.0 for sums in (self.right, self.wrong))
        precision = right / (right + wrong) if right + wrong else float("nan")
        recall = right / self.objects if self.objects else float("nan")
        total = right + wrong + self.objects
        return ThresholdMetrics(precision, recall, 2 * right / total if total else float("nan"))

    def best(self) -> float | None:
        """Return the threshold of the highest F1, the highest of ties; None if no detection finds an object."""
        if not self.right.size or not self.right[-1]:
            return None
        f1 = 2 * self.right / (self.right + self.wrong + self.objects)
        # Only where the score changes: equal scores are kept or dropped together.
        last = np.append(self.scores[1:] != self.scores[:-1], True)
        return float(self.scores[np.where(last, f1, -1.0).argmax()])


def score_curve(curves: list[ClassCurve], images: Bools | None = None) -> ScoreCurve:
    """Return the curve of the detections of some classes at an overlap of 0.5.

    Args:
        images: bool [I]; the images that count; None for all.
    """
    none = np.zeros(0)
    kept = [slice(None) if images is None else images[curve.images] for curve in curves]
    pairs = list(zip(curves, kept, strict=True))
    scores = np.concatenate([none, *(curve.scores[chosen] for curve, chosen in pairs)])
    gains = np.concatenate([none, *(curve.gains[0][chosen] for curve, chosen in pairs)])
    losses = np.concatenate([none, *(curve.losses[0][chosen] for curve, chosen in pairs)])
    order = np.argsort(-scores, kind="stable")
    objects = sum(float((curve.objects if images is None else curve.objects[images]).sum()) for curve in curves)
    return ScoreCurve(scores[order], gains[order].cumsum(), losses[order].cumsum(), objects)


def halves(images: int) -> tuple[Bools, Bools]:
    """Return two halves of the images, drawn at random, bool [I] each; one image is in both."""
    first = np.zeros(images, np.bool_)
    first[np.random.default_rng(0).permutation(images)[: (images + 1) // 2]] = True
    return (first, first) if images == 1 else (first, ~first)


def choose(curves: list[ClassCurve], images: int) -> ChosenThreshold | None:
    """Return the threshold of the highest F1 of some classes; None if nothing is found in the first half."""
    first, second = halves(images)
    chosen_on, judged_on = score_curve(curves, first), score_curve(curves, second)
    threshold = chosen_on.best()
    if threshold is None:
        return None
    return ChosenThreshold(threshold, chosen_on.at(threshold), judged_on.at(threshold))
