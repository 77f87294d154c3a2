"""A survey of a data set: counts, sizes, class balance, suspicious boxes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.dataset import Dataset
from boxwright.types import Categories, Sample

# COCO's bounds, in square pixels of the stored image.
_SMALL, _LARGE = 32.0**2, 96.0**2


@dataclass
class Survey:
    """The counts of a survey.

    Attributes:
        sizes: (height, width) to the number of images.
        boxes: Class name to the number of its boxes.
        images_with: Class name to the number of images with it.
        areas: "small", "medium", "large" (COCO's bounds) to the number of boxes.
        left_out: Boxes of classes that are not in the label map; not counted elsewhere.
        suspicious: One line for each box that looks like a mistake.
        unreadable: One line for each sample that could not be read.
    """

    images: int = 0
    empty: int = 0
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    boxes: Counter[str] = field(default_factory=Counter)
    images_with: Counter[str] = field(default_factory=Counter)
    areas: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    difficult: int = 0
    crowds: int = 0
    suspicious: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def add(self, sample: Sample, categories: Categories) -> None:
        """Count one sample."""
        self.images += 1
        self.left_out += sample.left_out
        self.empty += not len(sample.boxes)
        self.sizes[(sample.image.shape[0], sample.image.shape[1])] += 1
        names = [categories.by_label(label).name for label in sample.labels.tolist()]
        # Regions to ignore are no objects of their class.
        own = [name for name, crowd in zip(names, sample.is_crowd.tolist(), strict=True) if not crowd]
        self.boxes.update(own)
        self.images_with.update(set(own))
        for area in sample.areas.tolist():
            self.areas["small" if area < _SMALL else "medium" if area < _LARGE else "large"] += 1
        self.difficult += int(sample.difficult.sum())
        self.crowds += int(sample.is_crowd.sum())
        self.suspicious += _suspicious(sample, names)


def _suspicious(sample: Sample, names: list[str]) -> list[str]:
    height, width = sample.image.shape[:2]
    lines = []
    for row, reason in odd_boxes(sample):
        shown = ", ".join(f"{value:g}" for value in sample.boxes[row].tolist())
        lines.append(f"{sample.id or sample.filename}: {names[row]} [{shown}] in {width}×{height}: {reason}")
    return lines


def odd_boxes(sample: Sample) -> list[tuple[int, str]]:
    """Return the objects of a sample whose boxes look like mistakes, with the reasons."""
    height, width = sample.image.shape[:2]
    odd = []
    seen: set[tuple[object, ...]] = set()
    for row, (box, label) in enumerate(zip(sample.boxes.tolist(), sample.labels.tolist(), strict=True)):
        reason = suspicion(box, height, width) or ("twice in this image" if (label, *box) in seen else "")
        seen.add((label, *box))
        if reason:
            odd.append((row, reason))
    return odd


def suspicion(box: list[float], height: int, width: int) -> str:
    """Return why a box (xyxy in pixels) looks like a mistake in an image of a size; empty if it does not."""
    x_min, y_min, x_max, y_max = box
    if x_max < x_min or y_max < y_min:
        return "turned inside out"
    if x_max == x_min or y_max == y_min:
        return "no area"
    if x_min >= width or y_min >= height or x_max <= 0 or y_max <= 0:
        return "outside the image"
    # Records store shares of the image in float32, so that an edge on the border may come back slightly outside.
    if x_min < -0.01 or y_min < -0.01 or x_max > width + 0.01 or y_max > height + 0.01:
        return "crosses the border"
    if min(x_max - x_min, y_max - y_min) <= 1:
        return "one pixel or less across"
    if max(x_max - x_min, y_max - y_min) > 20 * min(x_max - x_min, y_max - y_min):
        return "more than 20 times as long as wide"
    return ""


def survey_dataset(
    dataset: Dataset,
    *,
    num_pictures: int = 30,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
    visit: Callable[[int, Sample], None] | None = None,
) -> tuple[Survey, list[Sample]]:
    """Read a whole data set and return its counts, and samples for a contact sheet.

    Samples that cannot be read are counted and listed.

    Args:
        num_pictures: How many samples to return, evenly spaced.
        progress: Wraps the indices, for a progress bar.
        visit: Called with the index and the sample of each that can be read.
    """
    survey, shown = Survey(), []
    # Unique, since a small data set has fewer samples than there are pictures.
    wanted: NDArray[np.int64] = np.unique(np.linspace(0, len(dataset) - 1, num_pictures).astype(np.int64))
    for index in progress(range(len(dataset))):
        try:
            sample = dataset[index]
        except DataError as error:
            survey.unreadable.append(str(error))
            continue
        survey.add(sample, dataset.categories)
        if visit is not None:
            visit(index, sample)
        if index in wanted:
            shown.append(sample)
    return survey, shown
