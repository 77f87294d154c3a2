"""The interface of metrics: add images, then compute values with TF's names."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.evaluation.metrics.regions import ImageMasks
from boxwright.types import Array, Detections, Sample


@dataclass(frozen=True)
class Matches:
    """Which detection of which image is matched with which object.

    Attributes:
        images: int64 [D]; the index of the image, in the order of `add`.
        detections: int64 [D]; the index among that image's detections.
        objects: int64 [D]; the index of the matched object; -1 for none.
    """

    images: NDArray[np.int64]
    detections: NDArray[np.int64]
    objects: NDArray[np.int64]

    def select(self, chosen: NDArray[np.int64]) -> Matches:
        """Return some of them, in the order of the indices `chosen`."""
        return Matches(self.images[chosen], self.detections[chosen], self.objects[chosen])

    @staticmethod
    def join(parts: Sequence[Matches]) -> Matches:
        """Return the concatenation of several tables."""
        none = np.zeros(0, np.int64)
        return Matches(
            np.concatenate([none, *(part.images for part in parts)]),
            np.concatenate([none, *(part.detections for part in parts)]),
            np.concatenate([none, *(part.objects for part in parts)]),
        )


@dataclass(frozen=True)
class Curve:
    """The precision-recall curve of one class at one overlap; detections come best first.

    Attributes:
        category: The class's name; empty for all classes pooled.
        iou_threshold: The minimum overlap of a detection with its object.
        scores: float64 [D].
        gains: float64 [D]; 1 for a true positive, 0 for a false one (or the weight of a group).
        precision: float64 [D]; after each detection.
        recall: float64 [D]; after each detection.
        matches: The position and match of each detection.
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
    """The result of a set of metrics.

    Attributes:
        curves: Of each class that has objects, at each overlap that is evaluated.
        notes: Explanations of values that are 0, -1 or NaN.
    """

    values: dict[str, float]
    curves: Collection[Curve] = ()
    notes: list[str] = field(default_factory=list)


class Metrics(Protocol):
    """Accumulates ground truth and detections by image."""

    def add(self, sample: Sample, detections: Detections[Array], masks: ImageMasks | None = None) -> None:
        """Add one image.

        Args:
            sample: The ground truth; boxes in pixels of the original image.
            detections: The detections, in the same frame.
        """
        ...

    def compute(self) -> MetricResult:
        """Return the metrics of all images."""
        ...


def without_nan(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return name to number, or None where it is not finite."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def verified_or_present(sample: Sample) -> list[int]:
    """Return the classes that were verified or have an object in an image."""
    return sorted({*sample.verified_labels.tolist(), *sample.labels.tolist()})
