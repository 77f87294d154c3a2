"""What every metric offers: gather images, then compute numbers under TF's names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from boxwright.types import Detections, Sample

__all__ = ["Metrics", "without_nan"]


class Metrics(Protocol):
    """Gathers truth and detections image by image."""

    def add(self, sample: Sample, detections: Detections) -> None:
        """Add one image.

        Args:
            sample: The truth; boxes in pixels of the original image.
            detections: What was found, in the same frame.
        """
        ...

    def compute(self) -> dict[str, float]:
        """Compute the metrics.

        Returns:
            Metric name to value.
        """
        ...

    def explain(self, metrics: dict[str, float]) -> list[str]:
        """Say why a metric is 0, -1 or NaN.

        Args:
            metrics: What `compute` returned.

        Returns:
            Lines to print; none where nothing needs explaining.
        """
        ...


def without_nan(values: Mapping[str, float]) -> dict[str, float | None]:
    """Bring numbers into a form that JSON has: it knows neither NaN nor infinity.

    Args:
        values: Name to number.

    Returns:
        Name to number, or None where it is not finite.
    """
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
