"""All numbers of a report; intervals are by drawing images again and again (Efron's bootstrap).

Dimensions: K classes, T overlap thresholds, B draws, D detections, I images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from boxwright.report.matching import (
    ClassCurve,
    Matching,
    Outcomes,
    average_precisions,
    class_curves,
    compute_outcomes,
    match,
    mean_ap,
)
from boxwright.report.scores import ChosenThreshold, choose
from boxwright.report.tables import Floats, Tables
from boxwright.report.tide import Tide, tide

# Where nothing is found at any score, there is nothing to choose a threshold by.
_NO_THRESHOLD = 0.5
_SEVENTY_FIVE = 5  # the index of the overlap 0.75


# Interval: the middle 95 % of the draws.
_PERCENTILES = (2.5, 97.5)
# Detections times overlaps times draws that take about ten seconds, and what one class and overlap costs besides.
_BUDGET, _EACH = 1.5e9, 8000
MOST_DRAWS, LEAST_DRAWS = 500, 30


@dataclass(frozen=True)
class Interval:
    """A value and where the middle 95 % of its draws lie."""

    value: float
    low: float
    high: float

    def to_list(self) -> list[float | None]:
        """Return value, low and high; None where one is not known."""
        return [None if np.isnan(bound) else float(bound) for bound in (self.value, self.low, self.high)]


def interval(value: float, draws: Floats) -> Interval:
    """Return a value with the interval of its draws, float64 [B]; draws that are NaN do not count."""
    known = draws[~np.isnan(draws)]
    if not known.size:
        return Interval(value, float("nan"), float("nan"))
    low, high = np.percentile(known, _PERCENTILES)
    return Interval(value, float(low), float(high))


def draws_for(curves: list[ClassCurve], times: int = 1) -> int:
    """Return how many draws fit into the time that a report may take, if each is used `times`."""
    cost = sum(curve.gains.size + _EACH * len(curve.gains) for curve in curves) * times
    return int(np.clip(_BUDGET / max(cost, 1), LEAST_DRAWS, MOST_DRAWS))


def image_draws(images: int, draws: int, seed: int = 0) -> Iterator[Floats]:
    """Yield how often each image is drawn, float64 [I], for each of the draws."""
    random = np.random.default_rng(seed)
    for _ in range(draws):
        yield np.bincount(random.integers(0, images, images), minlength=images).astype(np.float64)


def bootstrap(curves: list[ClassCurve], images: int, draws: int) -> Floats:
    """Return the average precision of each class at each overlap in each draw, float64 [B, K, T]."""
    return np.stack([average_precisions(curves, weights) for weights in image_draws(images, draws)])


def ap_interval(values: Floats, drawn: Floats) -> Interval:
    """Return the mean average precision [K, T] with the interval of its draws [B, K, T]."""
    return interval(mean_ap(values), np.array([mean_ap(draw) for draw in drawn]))


@dataclass(frozen=True, eq=False)
class Analysis:
    """The numbers of a report that need no pixels.

    Attributes:
        values: float64 [K, T]; average precision, NaN for a class without objects.
        drawn: float64 [B, K, T]; of images drawn again.
        chosen: The threshold of the highest F1; None if nothing is found.
        by_class: The same for each class.
        threshold: The score from which detections are shown as events.
    """

    tables: Tables
    matching: Matching
    curves: list[ClassCurve]
    values: Floats
    drawn: Floats
    chosen: ChosenThreshold | None
    by_class: list[ChosenThreshold | None]
    threshold: float
    outcomes: Outcomes
    tide: Tide

    @property
    def intervals(self) -> dict[str, Interval]:
        """The intervals of COCO's first three numbers."""
        parts = {
            "Precision/mAP": slice(None),
            "Precision/mAP@.50IOU": slice(1),
            "Precision/mAP@.75IOU": slice(_SEVENTY_FIVE, _SEVENTY_FIVE + 1),
        }
        return {name: ap_interval(self.values[:, part], self.drawn[:, :, part]) for name, part in parts.items()}

    def class_interval(self, number: int) -> Interval:
        """Return the interval of the average precision of a class."""
        with np.errstate(invalid="ignore"):
            return interval(float(self.values[number].mean()), self.drawn[:, number].mean(axis=1))


def analyze(tables: Tables) -> Analysis:
    """Return the numbers of truth and detections."""
    matching = match(tables)
    curves = class_curves(tables, matching)
    images = len(tables.ids)
    chosen = choose(curves, images)
    threshold = _NO_THRESHOLD if chosen is None else chosen.threshold
    return Analysis(
        tables=tables,
        matching=matching,
        curves=curves,
        values=average_precisions(curves),
        drawn=bootstrap(curves, images, draws_for(curves)),
        chosen=chosen,
        by_class=[choose([curve], images) for curve in curves],
        threshold=threshold,
        outcomes=compute_outcomes(tables, matching, threshold),
        tide=tide(tables),
    )
