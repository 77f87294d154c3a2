"""What every metric offers: gather images, then compute numbers under TF's names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.metrics.regions import ImageMasks
from boxwright.types import FoundObjects, Sample


@dataclass(frozen=True)
class Matches:
    """Which detection of which image found which object.

    Attributes:
        images: int64 [D]; which image, in the order in which they were added.
        detections: int64 [D]; which of that image's detections.
        objects: int64 [D]; which of that image's objects it found; -1 where it found none.
    """

    images: NDArray[np.int64]
    detections: NDArray[np.int64]
    objects: NDArray[np.int64]

    def select(self, chosen: NDArray[np.int64]) -> Matches:
        """Return some of them, in the order of the indices `chosen`."""
        return Matches(self.images[chosen], self.detections[chosen], self.objects[chosen])

    @staticmethod
    def join(parts: Sequence[Matches]) -> Matches:
        """Return one table of several."""
        none = np.zeros(0, np.int64)
        return Matches(
            np.concatenate([none, *(part.images for part in parts)]),
            np.concatenate([none, *(part.detections for part in parts)]),
            np.concatenate([none, *(part.objects for part in parts)]),
        )


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
        matches: Where each detection is, and what it found.
    """

    category: str
    iou_threshold: float
    scores: NDArray[np.float64]
    gains: NDArray[np.float64]
    objects: float
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]
    matches: Matches


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

    def add(self, sample: Sample, detections: FoundObjects, masks: ImageMasks | None = None) -> None:
        """Add one image.

        Args:
            sample: The truth; boxes in pixels of the original image.
            detections: What was found, in the same frame.
            masks: Of both, where they are known.
        """
        ...

    def compute(self) -> MetricResult:
        """Return what was found in all images."""
        ...


def without_nan(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return name to number, or None where it is not finite."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
