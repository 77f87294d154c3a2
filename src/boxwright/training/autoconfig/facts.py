"""Statistics of a data set that determine a configuration: numbers and sizes of images and objects, classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.dataset import Dataset
from boxwright.training.preflight.records import Progress, Record, read_records, spread

# Samples that are decoded: enough for medians and deciles.
_MOST = 2000


@dataclass(frozen=True, eq=False)
class DataStatistics:
    """Statistics of training data.

    Attributes:
        aspect_spread: The share of images whose aspect ratio differs from the median by more than a third.
        sides: float64 [N], the square root of each object's area, in pixels of its image.
        relative_sides: The same as shares of the image's longer side.
        counts: Objects by class name, in the samples that were read.
        unreadable: A line for each sample that cannot be read.
    """

    images: int
    size: tuple[int, int]
    aspect: float
    aspect_spread: float
    sides: NDArray[np.float64]
    relative_sides: NDArray[np.float64]
    counts: Counter[str]
    unreadable: tuple[str, ...] = ()

    def small_side(self) -> float:
        """Return the 10th percentile of the objects' sides, as a share of the image's longer side."""
        return float(np.quantile(self.relative_sides, 0.1))


def read_facts(dataset: Dataset, progress: Progress | None = None) -> tuple[DataStatistics, list[Record]]:
    """Return statistics of at most 2000 evenly spread training samples, and the samples without their pixels.

    Raises:
        DataError: If no sample can be read, or none has an object.
    """

    def shown(items: Iterable[int]) -> Iterable[int]:
        return items if progress is None else progress("images", items)

    records, unreadable = read_records(dataset, spread(len(dataset), _MOST), workers=0, progress=shown)
    if not records:
        raise DataError(f"{dataset.name}: no sample can be read: {unreadable[0] if unreadable else 'it is empty'}")
    names = [item.name for item in dataset.categories]
    labels = {item.label: item.name for item in dataset.categories}
    counts = Counter(dict.fromkeys(names, 0))
    counts.update(labels[label] for record in records for label in record.labels.tolist() if label in labels)
    facts = compute_statistics(records, len(dataset), counts, unreadable)
    if not len(facts.sides):
        raise DataError(f"{dataset.name}: none of {len(records)} images has an object; are its annotations found?")
    return facts, records


def compute_statistics(
    records: Sequence[Record], images: int, counts: Counter[str], unreadable: Sequence[str] = ()
) -> DataStatistics:
    """Return the statistics of at least one sample."""
    heights, widths = np.array([record.size for record in records], np.float64).T
    aspects = widths / heights
    aspect = float(np.median(aspects))
    sides, relative = [], []
    for record in records:
        boxes = record.boxes[~record.crowd].astype(np.float64)
        extents = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
        side = np.sqrt(extents.prod(1))
        sides.append(side[side > 0])
        relative.append(side[side > 0] / max(record.size))
    return DataStatistics(
        images=images,
        size=(int(np.median(heights)), int(np.median(widths))),
        aspect=aspect,
        # In logarithms, so that 3:4 and 4:3 are equally far from a square.
        aspect_spread=float((np.abs(np.log(aspects / aspect)) > np.log(4 / 3)).mean()),
        sides=np.concatenate(sides),
        relative_sides=np.concatenate(relative),
        counts=counts,
        unreadable=tuple(unreadable),
    )
