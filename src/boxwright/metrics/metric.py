"""What every metric offers: gather images, then compute numbers under TF's names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.types import Detections, Sample

__all__ = ["Curve", "MetricResult", "Metrics", "without_nan"]


@dataclass(frozen=True)
class Curve:
    """The detections of one class at one overlap, best first, and what they make of precision and recall.

    Attributes:
        category: The class's name; empty for all classes pooled.
        iou_threshold: The least overlap of a detection with its object.
        scores: float64 [D].
        gains: float64 [D]; what each found: 1 an object, 0 nothing (or what a group counts).
        objects: How many were to be found.
        precision: float64 [D]; after each detection.
        recall: float64 [D]; after each detection.
    """

    category: str
    iou_threshold: float
    scores: NDArray[np.float64]
    gains: NDArray[np.float64]
    objects: float
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]


@dataclass(frozen=True)
class MetricResult:
    """What a metric set found.

    Attributes:
        values: TF's metric names to values.
        curves: Of each class that has objects, at each overlap that is looked at.
        notes: Why a value is 0, -1 or NaN, where one is.
    """

    values: dict[str, float]
    curves: list[Curve] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Metrics(Protocol):
    """Gathers truth and detections image by image."""

    def add(self, sample: Sample, detections: Detections) -> None:
        """Add one image.

        Args:
            sample: The truth; boxes in pixels of the original image.
            detections: What was found, in the same frame.
        """
        ...

    def compute(self) -> MetricResult:
        """Return what was found in all images."""
        ...


def without_nan(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return name to number, or None where it is not finite."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
