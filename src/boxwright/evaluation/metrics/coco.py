"""COCO's detection metrics, with TensorFlow's names.

Dimensions: T overlap thresholds, S ranges of size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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
from boxwright.evaluation.metrics.metric import MetricResult, verified_or_present
from boxwright.evaluation.metrics.regions import BOXES, ImageMasks, RegionKind
from boxwright.types import Array, Categories, Detections, Sample

_SIZES = ("", " (small)", " (medium)", " (large)")
_LIMITS = (1, 10, 100)

# Returns the classes of an image that were annotated; None for all.
Labeled = Callable[[Sample], Sequence[int] | None]


@dataclass(frozen=True)
class PerCategoryMetrics:
    """What is computed of each class, beside the twelve metrics of all.

    Attributes:
        every: All twelve metrics of each class, as `DetectionBoxes_Precision mAP ByCategory/NAME`, not only its mAP.
        groups: Names of groups of classes, each with the names of its classes, for the mean of their mAP as
            `DetectionBoxes_PerformanceBySuperCategory/NAME`.
    """

    every: bool = False
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)


class CocoMetrics:
    """Accumulates ground truth and detections by image, then computes COCO's twelve metrics, optionally per class."""

    def __init__(
        self,
        categories: Categories,
        *,
        by_category: PerCategoryMetrics | None = None,
        labeled: Labeled | None = None,
        kind: RegionKind = BOXES,
    ) -> None:
        """Start without images.

        Args:
            by_category: What to add of each class, at least `DetectionBoxes_PerformanceByCategory/mAP/NAME`; None for
                nothing.
            labeled: Returns the classes of an image whose detections count; None for all.
        """
        self.categories, self.by_category, self.labeled, self.kind = categories, by_category, labeled, kind
        self._prefix = f"Detection{kind.name}"
        self._map = f"{self._prefix}_Precision/mAP"
        self._known = np.array(sorted(category.label for category in categories), np.int64)
        self._accumulator = MatchAccumulator(len(RANGES), len(THRESHOLDS), len(THRESHOLDS))
        self._objects: dict[int, NDArray[np.int64]] = defaultdict(lambda: np.zeros(len(RANGES), np.int64))
        self._images = self._truths = self._found = 0
        self._best = 0.0

    def add(self, sample: Sample, detections: Detections[Array], masks: ImageMasks | None = None) -> None:
        """Add one image."""
        truth, detected = self.kind.of(sample, detections, masks)
        labels, scores = detections.labels, detections.scores.astype(np.float32)
        self._images += 1
        self._truths += len(sample.labels)
        self._found += len(labels)
        self._best = max(self._best, float(scores.max(initial=0.0)))
        every = to_candidates(self._images - 1, detected, labels, scores)
        # As pycocotools, which drops worse detections before it matches any.
        counted = (every.ranks < _LIMITS[-1]) & are_known(every.labels, self._known)
        if self.labeled is not None and (classes := self.labeled(sample)) is not None:
            counted &= np.isin(every.labels, classes)
        judged = unmatched(select(every, counted))
        objects = Truth(truth, sample.labels, sample.areas.astype(np.float64), sample.is_crowd)
        for label, count in match_classes(judged, detected, objects, self._known):
            self._objects[label] += count
        self._accumulator.add(judged)

    def compute(self) -> MetricResult:
        """Return the metrics; -1 for a metric without ground truth."""
        judged = self._accumulator.by_class()
        classes = {
            label: compute_class_results(judged, label, self._objects[label], _LIMITS)
            for label in sorted(self._objects)
        }
        values = {f"{self._prefix}_{name}": value for name, value in self._summary(classes).items()}
        if self.by_category is not None:
            values |= self._metrics_by_class(classes, self.by_category)
        return MetricResult(values, ClassCurves(judged, self._objects, self.categories), self._notes(values))

    def _summary(self, classes: Mapping[int, ClassResults]) -> dict[str, float]:
        """Return the twelve metrics of some classes."""
        precision = [curves.precision for curves in classes.values()]
        recall = {limit: [curves.recalls[limit] for curves in classes.values()] for limit in _LIMITS}
        values = {
            "Precision/mAP": mean_of_known(p[0] for p in precision),
            "Precision/mAP@.50IOU": mean_of_known(p[0, 0] for p in precision),
            # The sixth of the thresholds 0.5, 0.55, … 0.95.
            "Precision/mAP@.75IOU": mean_of_known(p[0, 5] for p in precision),
        }
        values |= {f"Precision/mAP{_SIZES[size]}": mean_of_known(p[size] for p in precision) for size in (1, 2, 3)}
        values |= {f"Recall/AR@{limit}": mean_of_known(r[0] for r in recall[limit]) for limit in _LIMITS}
        return values | {
            f"Recall/AR@100{_SIZES[size]}": mean_of_known(r[size] for r in recall[100]) for size in (1, 2, 3)
        }

    def _metrics_by_class(self, classes: Mapping[int, ClassResults], wanted: PerCategoryMetrics) -> dict[str, float]:
        """Return the metrics of each class and group, with TF's names."""
        values: dict[str, float] = {}
        maps: dict[str, float] = {}
        for category in self.categories:
            own = classes.get(category.label)
            summary = self._summary({} if own is None else {category.label: own})
            maps[category.name] = summary["Precision/mAP"]
            values[f"{self._prefix}_PerformanceByCategory/mAP/{category.name}"] = maps[category.name]
            if wanted.every:
                # TF's names of these, with a space where those of all classes have a slash.
                named = ((name.replace("/", " "), value) for name, value in summary.items())
                values |= {f"{self._prefix}_{name} ByCategory/{category.name}": value for name, value in named}
        for group, names in wanted.groups.items():
            mean = mean_of_known(np.array(maps[name]) for name in names if name in maps)
            values[f"{self._prefix}_PerformanceBySuperCategory/{group}"] = mean
        return values

    def _notes(self, metrics: dict[str, float]) -> list[str]:
        """Return explanations of metrics that are 0 or -1."""
        if not self._truths:
            return [f"AP is -1: none of the {self._images} images has an object"]
        if not self._found:
            return ["AP is 0: no detection scored above the threshold of post_processing; is the detector trained?"]
        if metrics[self._map] == 0:
            return [
                f"AP is 0: none of {self._found} detections (best score {self._best:.3g}) "
                "overlaps an object of its class"
            ]
        return []


def verified_or_all(sample: Sample) -> list[int] | None:
    """Return the same; None, for all classes, if none was verified."""
    return verified_or_present(sample) if len(sample.verified_labels) else None
