"""Writing the page on data: `boxwright inspect DATA --report FOLDER`.

Objects, sizes and pixels of images are collected as they are read, then counted by class, size, aspect and place.

Dimensions: I images, N objects, K classes, S bins of size, A bins of aspect, H cells of a side of the map of places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from boxwright.base.files import make_folder
from boxwright.data.dataset import Dataset
from boxwright.data.survey import Survey, odd_boxes
from boxwright.report.page import write_data, write_page
from boxwright.report.pictures import Photo, copy_and_measure, find_same_images
from boxwright.report.settings import ReportSettings
from boxwright.report.tables import Floats, Indices
from boxwright.runtime.optional import installed_versions
from boxwright.types import Categories, Sample


@dataclass(frozen=True, eq=False)
class DataTables:
    """All images that could be read, in order, and their objects.

    Attributes:
        names: Of the images.
        sizes: int64 [I, 2]; height and width.
        files: The copy of each image, a path within the report; empty for none.
        images: int64 [N]; the image of each object.
        labels: int64 [N].
        boxes: float64 [N, 4], xyxy in pixels.
        odd: Objects whose boxes look like mistakes, with the reasons.
        groups: Indices of images that are nearly the same, of two and more.
        pairs: The number of pairs of such images.
    """

    categories: Categories
    names: Sequence[str]
    sizes: Indices
    files: Sequence[str]
    images: Indices
    labels: Indices
    boxes: Floats
    odd: Sequence[tuple[int, str]]
    groups: Sequence[Sequence[int]]
    pairs: int = 0

    @property
    def positions(self) -> Indices:
        """The place of each object's class among the classes, int64 [N]; K for labels that have none."""
        known = np.array([category.label for category in self.categories], np.int64)
        places = np.searchsorted(known, self.labels)
        is_known = np.append(known, -1)[places] == self.labels
        return np.where(is_known, places, len(known)).astype(np.int64)


class DataCollector:
    """Collects samples; their images are copied and measured by threads meanwhile. A context manager."""

    def __init__(self, dataset: Dataset, folder: Path, settings: ReportSettings) -> None:
        """Start without samples.

        Args:
            dataset: The data whose samples are added.
            folder: The report's.
            settings: How many images are copied, spread evenly, and of what size.
        """
        self._dataset, images = dataset, len(dataset)
        make_folder(folder / "pictures")
        self._folder, self._settings = folder, settings
        step = max(-(-images // settings.max_pictures), 1) if settings.max_pictures else 0
        self._copied = set(range(0, images, step)) if step else set[int]()
        self._pool = ThreadPoolExecutor(settings.threads)
        self._photos: list[Future[Photo]] = []
        self._samples: list[tuple[str, tuple[int, int], Indices, Floats]] = []
        self._odd: list[tuple[int, str]] = []
        self._objects = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, index: int, sample: Sample) -> None:
        """Add a sample; an image with odd boxes is copied in any case."""
        odd = odd_boxes(sample)
        self._odd += [(self._objects + row, reason) for row, reason in odd]
        self._objects += len(sample.labels)
        height, width = sample.image.shape[:2]
        name = sample.filename or sample.id or str(index)
        self._samples.append((name, (height, width), sample.labels, sample.boxes.astype(np.float64)))
        wanted = self._settings.max_pictures and (odd or index in self._copied)
        file = f"pictures/{index:06d}.jpg" if wanted else ""
        # Few wait at a time, as each holds its pixels.
        if len(self._photos) >= 4 * self._settings.threads:
            self._photos[-4 * self._settings.threads].result()
        pixels = np.clip(sample.image[..., :3], 0, 255).astype(np.uint8)
        side = self._settings.picture_side
        self._photos.append(self._pool.submit(copy_and_measure, self._dataset, index, pixels, self._folder, file, side))

    def tables(self, categories: Categories) -> DataTables:
        """Return everything that was collected."""
        photos = {number: future.result() for number, future in enumerate(self._photos)}
        names = [name for name, *_ in self._samples]
        none = np.zeros(0, np.int64)
        duplicates = find_same_images(photos)
        counts = [len(labels) for *_, labels, _ in self._samples]
        return DataTables(
            categories=categories,
            names=names,
            sizes=np.array([size for _, size, *_ in self._samples], np.int64).reshape(-1, 2),
            files=[photos[number].file for number in range(len(names))],
            images=np.repeat(np.arange(len(names)), counts),
            labels=np.concatenate([none, *(labels for *_, labels, _ in self._samples)]),
            boxes=np.concatenate([np.zeros((0, 4)), *(boxes for *_, boxes in self._samples)]),
            odd=self._odd,
            groups=duplicates.groups,
            pairs=duplicates.count,
        )


# Sides as square roots of areas, in pixels, and widths over heights; what is beyond them is in the first and last bin.
SIDES = (0, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
ASPECTS = (0, 1 / 5, 1 / 3, 1 / 2, 2 / 3, 4 / 5, 5 / 4, 3 / 2, 2, 3, 5)
CELLS = 24


@dataclass(frozen=True, eq=False)
class Counts:
    """Counts of each class, which is a row.

    Attributes:
        objects: int64 [K].
        images: int64 [K]; images with an object of it.
        sides: int64 [K, S]; objects by the square root of their box's area.
        aspects: int64 [K, A]; by width over height.
        middle: float64 [K, 2]; the median width and height in pixels, NaN without objects.
    """

    objects: Indices
    images: Indices
    sides: Indices
    aspects: Indices
    middle: Floats


def count(tables: DataTables) -> Counts:
    """Return the counts of all classes."""
    classes = len(tables.categories)
    position = tables.positions
    spans = np.maximum(tables.boxes[:, 2:] - tables.boxes[:, :2], 0)
    sides = np.searchsorted(SIDES, np.sqrt(spans.prod(axis=1)), "right") - 1
    aspects = np.searchsorted(ASPECTS, spans[:, 0] / np.maximum(spans[:, 1], 1e-6), "right") - 1
    pairs = np.unique(position * max(len(tables.names), 1) + tables.images)
    middle = np.full((classes, 2), np.nan)
    for place in np.unique(position[position < classes]).tolist():
        middle[place] = np.median(spans[position == place], axis=0)
    return Counts(
        objects=np.bincount(position, minlength=classes)[:classes],
        images=np.bincount(pairs // max(len(tables.names), 1), minlength=classes)[:classes],
        sides=_crossed(position, sides, classes, len(SIDES)),
        aspects=_crossed(position, aspects, classes, len(ASPECTS)),
        middle=middle,
    )


def _crossed(position: Indices, bins: Indices, classes: int, count: int) -> Indices:
    """Return how many objects of each class are in each bin, int64 [K, count]."""
    inside = position < classes
    together = position[inside] * count + bins[inside]
    return np.bincount(together, minlength=classes * count).reshape(classes, count)


def places(tables: DataTables, chosen: Indices) -> Indices:
    """Return how many of the chosen objects cover each cell of a square that all images are stretched to, int64 [H, H].

    A cell is covered if its middle is in the box.
    """
    sizes = tables.sizes[tables.images[chosen]][:, [1, 0, 1, 0]]
    shares = tables.boxes[chosen] / np.maximum(sizes, 1)
    # The first cell whose middle is in the box, and the first beyond it.
    bounds = np.clip(np.ceil(shares * CELLS - 0.5), 0, CELLS).astype(np.int64)
    changes = np.zeros((CELLS + 1, CELLS + 1), np.int64)
    x0, y0, x1, y1 = bounds[(bounds[:, 2:] > bounds[:, :2]).all(axis=1)].T
    for sign, rows, columns in ((1, y0, x0), (-1, y0, x1), (-1, y1, x0), (1, y1, x1)):
        np.add.at(changes, (rows, columns), sign)
    return changes.cumsum(axis=0).cumsum(axis=1)[:CELLS, :CELLS]


CLASSES_A_PART, IMAGES_A_PART = 25, 1000
_MOST_SIZES, _MOST_GROUPS, _MOST_LINES, _MOST_ODD = 12, 100, 100, 2000


def write_data_report(folder: Path, name: str, survey: Survey, tables: DataTables) -> None:
    """Write the page and its data, beside the pictures."""
    counts = count(tables)
    write_data(folder, "images", _image_columns(tables))
    write_data(folder, "summary", _summary(tables, counts))
    write_data(folder, "odd", _odd_columns(tables))
    for part, start in enumerate(range(0, len(tables.categories), CLASSES_A_PART)):
        stop = min(start + CLASSES_A_PART, len(tables.categories))
        write_data(folder, f"classes-{part}", [_class_data(tables, counts, label) for label in range(start, stop)])
    for part, start in enumerate(range(0, len(tables.names), IMAGES_A_PART)):
        write_data(folder, f"objects-{part}", _objects(tables, start, start + IMAGES_A_PART))
    write_page(folder, "data.html", _content(name, survey, tables, counts))


def _image_columns(tables: DataTables) -> dict[str, Any]:
    return {
        "name": list(tables.names),
        "height": tables.sizes[:, 0].tolist(),
        "width": tables.sizes[:, 1].tolist(),
        "file": list(tables.files),
        "objects": np.bincount(tables.images, minlength=len(tables.names)).tolist(),
    }


def _xywh(tables: DataTables, chosen: Any) -> list[list[float]]:
    boxes = tables.boxes[chosen]
    rows: list[list[float]] = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).round(1).tolist()
    return rows


def _objects(tables: DataTables, start: int, stop: int) -> list[list[Any]]:
    """Return the objects of some images: for each image rows of class, x, y, width and height."""
    first, last = np.searchsorted(tables.images, [start, stop]).tolist()
    chosen = np.arange(first, last)
    rows: list[list[Any]] = [[] for _ in range(start, min(stop, len(tables.names)))]
    for image, label, box in zip(
        tables.images[chosen].tolist(), tables.positions[chosen].tolist(), _xywh(tables, chosen), strict=True
    ):
        rows[image - start].append([label, *box])
    return rows


def _odd_columns(tables: DataTables) -> list[dict[str, Any]]:
    """Return the objects that look like mistakes, at most so many."""
    odd = tables.odd[:_MOST_ODD]
    rows = np.array([row for row, _ in odd], np.int64)
    columns = (tables.images[rows].tolist(), tables.positions[rows].tolist(), _xywh(tables, rows))
    return [
        {"image": image, "class": label, "box": box, "reason": reason}
        for image, label, box, (_, reason) in zip(*columns, odd, strict=True)
    ]


def _class_data(tables: DataTables, counts: Counts, number: int) -> dict[str, Any]:
    own = np.flatnonzero(tables.positions == number)
    return {
        "sides": counts.sides[number].tolist(),
        "aspects": counts.aspects[number].tolist(),
        "places": places(tables, own).tolist(),
        "images": np.unique(tables.images[own]).tolist(),
    }


def _summary(tables: DataTables, counts: Counts) -> dict[str, Any]:
    crowded = np.bincount(np.minimum(np.bincount(tables.images, minlength=len(tables.names)), 50), minlength=51)
    return {
        # Labels without a class have the place after the last.
        "classes": [category.title for category in tables.categories] + ["class not in the label map"],
        "sides": list(SIDES),
        "aspects": [round(aspect, 2) for aspect in ASPECTS],
        "cells": CELLS,
        "all": {
            "sides": counts.sides.sum(axis=0).tolist(),
            "aspects": counts.aspects.sum(axis=0).tolist(),
            "places": places(tables, np.arange(len(tables.labels))).tolist(),
        },
        "perImage": crowded.tolist() if len(tables.names) else [],
        "groups": [list(group) for group in tables.groups[:_MOST_GROUPS]],
        "classesAPart": CLASSES_A_PART,
        "imagesAPart": IMAGES_A_PART,
    }


def _content(name: str, survey: Survey, tables: DataTables, counts: Counts) -> dict[str, Any]:
    total = int(counts.objects.sum())
    most = int(counts.objects.max(initial=0)) or 1
    classes = [
        {
            "name": category.title,
            "id": category.id,
            "objects": int(counts.objects[number]),
            "share": counts.objects[number] / total if total else None,
            "bar": counts.objects[number] / most,
            "images": int(counts.images[number]),
            "width": float(counts.middle[number, 0]),
            "height": float(counts.middle[number, 1]),
        }
        for number, category in enumerate(tables.categories)
    ]
    sizes = Counter(map(tuple, tables.sizes.tolist())).most_common()
    versions = installed_versions("boxwright")
    return {
        "title": name,
        "survey": survey,
        "objects": total,
        "classes": classes,
        "sizes": [{"height": size[0], "width": size[1], "images": images} for size, images in sizes[:_MOST_SIZES]],
        "more_sizes": max(len(sizes) - _MOST_SIZES, 0),
        "odd": len(tables.odd),
        "shown_odd": min(len(tables.odd), _MOST_ODD),
        "groups": len(tables.groups),
        "pairs": tables.pairs,
        "shown_groups": min(len(tables.groups), _MOST_GROUPS),
        "unreadable": survey.unreadable[:_MOST_LINES],
        "versions": ", ".join(f"{package} {version}" for package, version in versions.items()),
    }
