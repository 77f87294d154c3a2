"""The cost of reduced precision: average precision of a detector and of its export, on the same samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boxwright.data.dataset import Dataset
from boxwright.evaluation.metrics.coco import CocoMetrics
from boxwright.exporters.pictures import spread
from boxwright.types import Finder

# From a finder to its average precision.
Accuracy = Callable[[Finder], float]
ALLOWED_DROP = 0.01
_METRIC = "DetectionBoxes_Precision/mAP"


def average_precision(dataset: Dataset, most: int = 1000) -> Accuracy:
    """Return a function that measures a finder's COCO average precision on up to `most` evenly spread samples."""

    def measure(find: Finder) -> float:
        metrics = CocoMetrics(dataset.categories)
        for number in spread(len(dataset), most):
            sample = dataset[number]
            (detections,) = find([sample.image])
            metrics.add(sample, detections)
        return metrics.compute().values[_METRIC]

    return measure


def compared_accuracy(before: float, after: float) -> dict[str, Any]:
    """Return the average precisions of a detector and its export, the drop, and whether it passes."""
    drop = before - after
    # A detector that finds nothing loses nothing, which would prove nothing.
    passed = drop <= ALLOWED_DROP and before > 0
    return {
        "metric": _METRIC,
        "detector": before,
        "export": after,
        "drop": drop,
        "allowed": ALLOWED_DROP,
        "passed": passed,
        "problem": "" if passed else f"AP fell from {before:.4f} to {after:.4f} (allowed: {ALLOWED_DROP:g})",
    }
