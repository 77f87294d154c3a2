"""What scores are worth: precision and recall at a threshold, how often a score is right, and a curve that mends it.

A threshold is chosen on one half of the images, and judged on the other.

Dimensions: D detections, N detections of one or all classes, I images, M bins of scores, P points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boxwright.pipeline import messages as m
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


# As Küppers et al. (2020) for scores alone.
BINS = 20
# A curve of so many points is as good as one of thousands, and can be read.
_MOST_POINTS = 25


@dataclass(frozen=True, eq=False)
class Reliability:
    """Detections by their score, in M bins from 0 to 1.

    Attributes:
        counts: int64 [M].
        scores: float64 [M]; the mean score of each bin; NaN for an empty one, here and below.
        precision: float64 [M]; the share that is right.
        error: The detection calibration error (D-ECE): the mean difference of the two, weighted by counts.
    """

    counts: np.ndarray
    scores: Floats
    precision: Floats
    error: float


@dataclass(frozen=True, eq=False)
class FittedCalibration:
    """A calibration that was fitted on half of the images, and judged on the other.

    Attributes:
        x: Scores before, ascending, float64 [P].
        y: Scores after, float64 [P].
        before: On the other half, as the scores are.
        after: On the other half, with the curve.
    """

    x: Floats
    y: Floats
    before: Reliability
    after: Reliability


def scored(curves: list[ClassCurve], images: Bools | None = None) -> tuple[Floats, Floats]:
    """Return score and rightness, float64 [D] each, of the detections that count, at an overlap of 0.5."""
    none = np.zeros(0)
    kept = [
        (curve.gains[0] + curve.losses[0] > 0) & (True if images is None else images[curve.images]) for curve in curves
    ]
    pairs = list(zip(curves, kept, strict=True))
    return (
        np.concatenate([none, *(curve.scores[chosen] for curve, chosen in pairs)]),
        np.concatenate([none, *(curve.gains[0][chosen] for curve, chosen in pairs)]),
    )


def reliability(scores: Floats, right: Floats) -> Reliability:
    """Return detections by their score; the error is NaN without any."""
    bins = np.clip((scores * BINS).astype(np.int64), 0, BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    with np.errstate(invalid="ignore"):
        mean, precision = (np.bincount(bins, weights, BINS) / counts for weights in (scores, right))
        error = np.nansum(counts * np.abs(mean - precision)) / counts.sum() if len(scores) else float("nan")
    return Reliability(counts, mean, precision, float(error))


def isotonic(scores: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Return the ascending curve that fits best by squares, as score and share: neighbors that descend are pooled.

    Ayer et al. (1955). The points are the pools' mean scores, at most some dozens, pooled further where there are more.
    """
    order = np.argsort(scores, kind="stable")
    pools: list[list[float]] = []  # sum of scores, sum of rights, count
    for score, hit in zip(scores[order].tolist(), right[order].tolist(), strict=True):
        pools.append([score, hit, 1.0])
        while len(pools) > 1 and pools[-2][1] * pools[-1][2] >= pools[-1][1] * pools[-2][2]:
            last = pools.pop()
            pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
    table = np.array(pools).reshape(-1, 3)
    group = np.minimum(table[:, 2].cumsum() * _MOST_POINTS / max(table[:, 2].sum(), 1), _MOST_POINTS - 1e-9)
    starts = np.unique(group.astype(np.int64), return_index=True)[1]
    table = np.add.reduceat(table, starts, axis=0) if len(table) > _MOST_POINTS else table
    x, y = table[:, 0] / table[:, 2], table[:, 1] / table[:, 2]
    rising = np.append(np.diff(x) > 1e-6, True)
    return x[rising], y[rising]


def fit(curves: list[ClassCurve], images: int) -> FittedCalibration | None:
    """Return a calibration of all classes; None without detections in one of the halves."""
    first, second = halves(images)
    (scores, right), (others, others_right) = scored(curves, first), scored(curves, second)
    if not len(scores) or not len(others):
        return None
    x, y = isotonic(scores, right)
    x, y = np.round(x, 5), np.round(y, 5)
    after = np.interp(others, x, y)
    return FittedCalibration(x, y, reliability(others, others_right), reliability(after, others_right))


def calibration_message(fitted: FittedCalibration) -> m.CalibrationConfig:
    """Return the message for `post_processing.calibration_config`: one curve for all classes."""
    pairs = [m.XYPairsXYPair(x=float(x), y=float(y)) for x, y in zip(fitted.x, fitted.y, strict=True)]
    return m.CalibrationConfig(function_approximation=m.FunctionApproximation(x_y_pairs=m.XYPairs(x_y_pair=pairs)))
