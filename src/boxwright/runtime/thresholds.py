"""Score thresholds of each class, for one model: the `thresholds.json` of an evaluation report.

Dimensions: B batch, D detections (padded).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import read_file, shown
from boxwright.base.text import visible
from boxwright.types.categories import Categories
from boxwright.types.detections import Array, Detections

_FORMAT = 1


@dataclass(frozen=True)
class Thresholds:
    """The confidence threshold of each class.

    Attributes:
        weights_sha256: Of the model that they were chosen for; empty if it is not known.
        overall: For classes that `by_class` lacks.
        by_class: Class names to thresholds.
        classes: The names of the model's classes, in the order of their labels.
    """

    weights_sha256: str
    overall: float
    by_class: Mapping[str, float]
    classes: tuple[str, ...]

    def to_json(self, **facts: Any) -> str:
        """Return the file's text; `facts` are further entries for people."""
        content = {
            "format": _FORMAT,
            "weights_sha256": self.weights_sha256,
            "classes": list(self.classes),
            "threshold": self.overall,
            "by_class": dict(self.by_class),
            **facts,
        }
        return visible(json.dumps(content, indent=2, ensure_ascii=False)) + "\n"

    def of_labels(self, categories: Categories) -> NDArray[np.float64]:
        """Return the threshold of each label up to the largest, float64."""
        values = np.full(categories.num_slots, self.overall)
        for category in categories:
            values[category.label] = self.by_class.get(category.name, self.overall)
        return values


def read_thresholds(path: str | Path) -> Thresholds:
    """Read a file; DataError if it is not one of thresholds."""
    where = shown(path)
    try:
        content = json.loads(read_file(path).decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {str(error)[:200]}") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise DataError(f"{where}: expected the thresholds.json that `boxwright evaluate --report` writes")
    by_class, classes = content.get("by_class"), content.get("classes")
    if not isinstance(by_class, dict) or not isinstance(classes, list):
        raise DataError(f"{where}: expected by_class, names to numbers, and a list of classes")
    for name, value in [("threshold", content.get("threshold")), *by_class.items()]:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise DataError(f"{where}: {name}: expected a number from 0 to 1, found {str(value)[:60]}")
    return Thresholds(
        str(content.get("weights_sha256") or ""), content["threshold"], by_class, tuple(map(str, classes))
    )


def require_same_model(
    thresholds: Thresholds, where: str | Path, weights_sha256: str, categories: Categories | None
) -> NDArray[np.float64]:
    """Return the threshold of each of a model's labels, float64.

    Raises:
        DataError: If the thresholds were chosen for other weights or classes.
    """
    if not thresholds.weights_sha256:
        raise DataError(f"{shown(where)}: chosen from a file of detections, of an unknown model; evaluate the model")
    names = () if categories is None else tuple(category.name for category in categories)
    if thresholds.weights_sha256 != weights_sha256 or categories is None or thresholds.classes != names:
        what = "classes" if thresholds.weights_sha256 == weights_sha256 else "weights"
        raise DataError(
            f"{shown(where)}: chosen for a model of other {what}; "
            "evaluate this one with --report, or remove --thresholds"
        )
    return thresholds.of_labels(categories)


def above_thresholds(detections: Detections[Array], limits: NDArray[np.float64]) -> Detections[Array]:
    """Return the detections that reach the threshold of their labels."""
    return detections.select(detections.scores >= _look_up_limits(detections.labels, limits))


def outputs_above(
    outputs: Mapping[str, NDArray[np.float32]], limits: NDArray[np.float64]
) -> dict[str, NDArray[np.float32]]:
    """Return an export's outputs with only the detections that reach the threshold of their labels, moved to the front.

    Rows after the last detection are 0, as padding is.
    """
    scores, labels = outputs["detection_scores"], outputs["detection_classes"].astype(np.int64) - 1
    valid = np.arange(scores.shape[1]) < outputs["num_detections"][:, None]
    kept = valid & (scores >= _look_up_limits(labels, limits))
    order = np.argsort(~kept, axis=1, kind="stable")
    filled = np.take_along_axis(kept, order, axis=1)
    result = dict(outputs)
    for name, value in outputs.items():
        # Raw outputs are of anchors, not of detections.
        if name.startswith("detection_") and value.shape[:2] == scores.shape:
            more = (1,) * (value.ndim - 2)
            rows = np.take_along_axis(value, order.reshape(*order.shape, *more), axis=1)
            result[name] = np.where(filled.reshape(*filled.shape, *more), rows, 0).astype(value.dtype)
    result["num_detections"] = kept.sum(1).astype(outputs["num_detections"].dtype)
    return result


def _look_up_limits(labels: NDArray[np.int64], limits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each label's threshold as float32 compares: a score of 0.3 in float32 reaches a threshold of 0.3."""
    return np.asarray(limits[np.clip(labels, 0, len(limits) - 1)].astype(np.float32), np.float64)
