"""LVIS's metrics: average precision on data in which only some classes were looked for in each image.

Of an image, detections count of the classes of its objects, and of those that it lists as absent; others are ignored.
Where not all objects of a class are annotated in an image, a detection of it that finds none is ignored too. Classes
are also averaged by how frequent they are in the training data (Gupta et al., 2019).

Dimensions: D detections of an image.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from boxwright.evaluation.metrics.coco_matching import (
    RANGES,
    THRESHOLDS,
    ClassCurves,
    ClassResults,
    Truth,
    are_known,
    compute_class_results,
    match_classes,
    mean_of_known,
    select,
    to_candidates,
    unmatched,
)
from boxwright.evaluation.metrics.judged import MatchAccumulator
from boxwright.evaluation.metrics.metric import MetricResult
from boxwright.evaluation.metrics.regions import BOXES, ImageMasks, RegionKind
from boxwright.types import Array, Categories, Detections, Sample

# Detections of an image, of all classes together; COCO's 100 are of each class.
_MOST = 300
_SIZES = ("", "s", "m", "l")
_FREQUENCIES = {"r": "rare", "c": "common", "f": "frequent"}


class LvisMetrics:
    """Accumulates ground truth and detections by image, then computes LVIS's thirteen metrics.

    As in LVIS's own package, crowds are objects like others.
    """

    def __init__(self, categories: Categories, *, kind: RegionKind = BOXES, by_category: bool = False) -> None:
        """Start without images.

        Args:
            categories: The classes, with their frequencies.
            by_category: Whether to add each class's AP, as `DetectionBoxes_PerformanceByCategory/mAP/NAME`.
        """
        self.categories, self.kind, self.by_category = categories, kind, by_category
        self._prefix = f"Detection{kind.name}"
        self._known = np.array(sorted(category.label for category in categories), np.int64)
        self._accumulator = MatchAccumulator(len(RANGES), len(THRESHOLDS), len(THRESHOLDS))
        self._objects: dict[int, NDArray[np.int64]] = defaultdict(lambda: np.zeros(len(RANGES), np.int64))
        self._images = self._found = self._listed = 0

    def add(self, sample: Sample, detections: Detections[Array], masks: ImageMasks | None = None) -> None:
        """Add one image; its `negative_labels` are the absent classes."""
        truth, detected = self.kind.of(sample, detections, masks)
        scores = detections.scores.astype(np.float32)
        self._images += 1
        self._found += len(scores)
        self._listed += len(sample.negative_labels) + len(sample.not_exhaustive_labels)
        best = np.zeros(len(scores), np.bool_)
        best[np.argsort(-scores, kind="stable")[:_MOST]] = True
        every = to_candidates(self._images - 1, detected, detections.labels, scores)
        judging = np.union1d(sample.labels, sample.negative_labels)
        judging = judging[are_known(judging, self._known)]
        counted = best[every.detections] & np.isin(every.labels, judging)
        judged = unmatched(select(every, counted))
        no_crowd = np.zeros(len(sample.labels), np.bool_)
        objects = Truth(truth, sample.labels, sample.areas.astype(np.float64), no_crowd)
        for label, count in match_classes(judged, detected, objects, self._known):
            self._objects[label] += count
        judged.ignored[...] |= ~judged.right & np.isin(judged.labels, sample.not_exhaustive_labels)
        self._accumulator.add(judged)

    def compute(self) -> MetricResult:
        """Return the metrics; -1 for a metric without ground truth."""
        judged = self._accumulator.by_class()
        classes = {
            label: compute_class_results(judged, label, self._objects[label], (_MOST,))
            for label in sorted(self._objects)
        }
        values = {f"{self._prefix}_{name}": value for name, value in self._summary(classes).items()}
        if self.by_category:
            for category in self.categories:
                own = [curves.precision[0] for label, curves in classes.items() if label == category.label]
                values[f"{self._prefix}_PerformanceByCategory/mAP/{category.name}"] = mean_of_known(own)
        return MetricResult(values, ClassCurves(judged, self._objects, self.categories), self._notes(values))

    def _summary(self, classes: Mapping[int, ClassResults]) -> dict[str, float]:
        """Return the thirteen metrics, with the package's names."""
        precision = [curves.precision for curves in classes.values()]
        frequency = {category.label: category.frequency for category in self.categories}
        values = {
            "AP": mean_of_known(p[0] for p in precision),
            "AP50": mean_of_known(p[0, 0] for p in precision),
            # The sixth of the thresholds 0.5, 0.55, … 0.95.
            "AP75": mean_of_known(p[0, 5] for p in precision),
        }
        values |= {f"AP{_SIZES[size]}": mean_of_known(p[size] for p in precision) for size in (1, 2, 3)}
        for group in _FREQUENCIES:
            values[f"AP{group}"] = mean_of_known(
                curves.precision[0] for label, curves in classes.items() if frequency[label] == group
            )
        recall = [curves.recalls[_MOST] for curves in classes.values()]
        return values | {
            f"AR{_SIZES[size]}@{_MOST}": mean_of_known(r[size] for r in recall) for size in range(len(RANGES))
        }

    def _notes(self, values: Mapping[str, float]) -> list[str]:
        """Return explanations of metrics that are 0 or -1, and of data that are not LVIS's."""
        notes = []
        value = values[f"{self._prefix}_AP"]
        if value == -1:
            notes.append(f"LVIS's AP is -1: none of the {self._images} images has an object")
        elif value == 0:
            notes.append(f"LVIS's AP is 0: none of {self._found} detections overlaps an object of its class")
        if not self._listed:
            notes.append(
                "no image lists classes that are absent or not exhaustively annotated, as LVIS's do: detections of "
                "classes without an object in their image were ignored"
            )
        known = {category.frequency for category in self.categories}
        if missing := " or ".join(name for group, name in _FREQUENCIES.items() if group not in known):
            notes.append(f"no class is {missing}: the label map's `frequency`, or LVIS's file, says which are")
        return notes
