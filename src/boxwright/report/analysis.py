"""All numbers of a report.

Dimensions: K classes, T overlap thresholds, B draws, D detections.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boxwright.report.bootstrap import Interval, ap_interval, bootstrap, draws_for, interval
from boxwright.report.matching import ClassCurve, Matching, average_precisions, class_curves, match
from boxwright.report.outcomes import Outcomes, outcomes_of
from boxwright.report.tables import Floats, Tables
from boxwright.report.thresholds import ChosenThreshold, choose
from boxwright.report.tide import Tide, tide

# Where nothing is found at any score, there is nothing to choose a threshold by.
_NO_THRESHOLD = 0.5
_SEVENTY_FIVE = 5  # the index of the overlap 0.75


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
        outcomes=outcomes_of(tables, matching, threshold),
        tide=tide(tables),
    )
