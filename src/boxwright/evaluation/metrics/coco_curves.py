"""COCO's precision and recall of a class under its rules, and its curves.

Dimensions: T overlap thresholds, S ranges of size, N detections of the class, best first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from boxwright.evaluation.metrics.average_precision import precision_and_recall, sampled_of
from boxwright.evaluation.metrics.judged import MatchesByClass, MatchFlags
from boxwright.evaluation.metrics.metric import Curve, Matches

Floats = NDArray[np.float64]
THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)


def precision_at_recalls(verdicts: MatchFlags, objects: NDArray[np.int64]) -> Floats:
    """Return the envelope of precision at 101 recalls, float64 [S, T, 101]; -1 for a range without objects.

    Args:
        objects: int64 [S].
    """
    precision = np.full((len(objects), len(THRESHOLDS), len(RECALLS)), -1.0)
    for size in np.flatnonzero(objects).tolist():
        for threshold in range(len(THRESHOLDS)):
            rule = size * len(THRESHOLDS) + threshold
            right, counted = verdicts.right_by(rule), verdicts.counted_by(rule)
            precision[size, threshold] = sampled_of(right, counted, float(objects[size]), RECALLS)
    return precision


def final_recall(verdicts: MatchFlags, objects: NDArray[np.int64], limit: int) -> Floats:
    """Return the recall of the best `limit` detections of each image, float64 [S, T]; -1 for a range without objects.

    Args:
        objects: int64 [S].
    """
    matches = np.zeros((len(objects), len(THRESHOLDS)))
    among = verdicts.among(limit)
    for rule in range(matches.size):
        matches[divmod(rule, len(THRESHOLDS))] = np.count_nonzero(among.right_by(rule))
    return np.where(objects[:, None] > 0, matches / np.maximum(objects[:, None], 1), -1.0)


class ClassCurves(Collection[Curve]):
    """The curves of classes at every overlap, for objects of all sizes; each is made when it is read.

    Together they need hundreds of bytes for each detection, and most evaluations read none.
    """

    def __init__(self, judged: MatchesByClass, objects: Mapping[int, float], names: Mapping[int, str]) -> None:
        """Hold what they are made of.

        Args:
            objects: The number of objects of each label that has some.
            names: The classes' names by label.
        """
        self._judged, self._objects, self._names = judged, objects, names

    def __len__(self) -> int:
        return len(self._objects) * len(THRESHOLDS)

    def __contains__(self, curve: object) -> bool:
        return any(member is curve for member in self)

    def __iter__(self) -> Iterator[Curve]:
        for label, count in self._objects.items():
            order = self._judged.best_first(label)
            verdicts = self._judged.verdicts(order)
            for number, threshold in enumerate(THRESHOLDS.tolist()):
                counted = verdicts.counted_by(number)
                chosen, gains = order[counted], verdicts.right_by(number)[counted].astype(np.float64)
                every = self._judged.every
                matches = Matches(
                    *(part[chosen].astype(np.int64) for part in (every.images, every.detections, every.objects[number]))
                )
                precision, recall = precision_and_recall(gains, 1 - gains, count)
                scores = every.scores[chosen].astype(np.float64)
                yield Curve(self._names[label], threshold, scores, gains, count, precision, recall, matches)
