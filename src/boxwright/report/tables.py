"""Truth and detections of all images as flat arrays.

Dimensions: I images, N objects, D detections.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import read_file, shown
from boxwright.data.coco import CocoDataset
from boxwright.types import Categories

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Objects:
    """All objects, image by image.

    Attributes:
        images: int64 [N]; the index of the image.
        labels: int64 [N].
        boxes: float64 [N, 4], xyxy in pixels of the image.
        areas: float64 [N]; of the mask where the truth has one.
        crowd: bool [N]; whether the box stands for many objects, and does not count.
    """

    images: Indices
    labels: Indices
    boxes: Floats
    areas: Floats
    crowd: Bools

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: Any) -> Self:
        return type(self)(**{one.name: getattr(self, one.name)[chosen] for one in fields(self)})


@dataclass(frozen=True, eq=False)
class Found:
    """All detections, image by image; within an image best first, ties as in the file.

    Attributes:
        images: int64 [D]; the index of the image.
        labels: int64 [D].
        boxes: float64 [D, 4], xyxy in pixels of the image.
        scores: float64 [D].
        rows: int64 [D]; the index of the row in the file.
    """

    images: Indices
    labels: Indices
    boxes: Floats
    scores: Floats
    rows: Indices

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: Any) -> Self:
        return type(self)(**{one.name: getattr(self, one.name)[chosen] for one in fields(self)})


@dataclass(frozen=True, eq=False)
class Tables:
    """What a report is made from.

    Attributes:
        ids: Of the images, as in the files.
        names: Of the images' files.
        sizes: int64 [I, 2]; height and width.
        places: int64 [I]; the index of each image in the data that was evaluated.
        truth_rows: The annotation of each object, for masks, keypoints and ids.
        found_rows: The rows of detections, in the file's order.
    """

    categories: Categories
    ids: Sequence[int | str]
    names: Sequence[str]
    sizes: Indices
    places: Indices
    objects: Objects
    found: Found
    truth_rows: Sequence[dict[str, Any]] = field(default_factory=list)
    found_rows: Sequence[dict[str, Any]] = field(default_factory=list)

    @property
    def class_names(self) -> list[str]:
        """The classes' names, in the order of `classes`."""
        return [category.title for category in self.categories]

    @property
    def classes(self) -> Indices:
        """The classes' labels, int64 [K], ascending."""
        return np.array([category.label for category in self.categories], np.int64)

    def select(self, chosen: Bools) -> Tables:
        """Return the tables of some images, bool [I]; images keep their indices."""
        return Tables(
            self.categories,
            self.ids,
            self.names,
            self.sizes,
            self.places,
            self.objects[chosen[self.objects.images]],
            self.found[chosen[self.found.images]],
            [],
            self.found_rows,
        )


def read_tables(truth: str | Path, detections: str | Path, image_folder: str | Path | None = None) -> Tables:
    """Read COCO's files of truth and of results.

    Raises:
        DataError: If they are not COCO's, or detections are of images or classes that the truth lacks.
    """
    dataset = CocoDataset(truth, image_folder, allow_paths_outside=True)
    return tables_of(dataset, read_rows(detections), str(detections))


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of COCO's file of results; DataError if it is none."""
    try:
        rows = json.loads(read_file(path).decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{shown(path)}: not JSON: {str(error)[:200]}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{shown(path)}: expected a list of detections, as COCO's results have it")
    return rows


def tables_of(dataset: CocoDataset, rows: Sequence[dict[str, Any]], where: str) -> Tables:
    """Return the tables of a data set's truth and rows of results.

    Args:
        where: The rows' file, for errors.
    """
    samples, heads, truth_rows = [], [], []
    for index in range(len(dataset)):
        head, annotations = dataset.rows(index)
        samples.append(dataset.truth(index))
        heads.append(head)
        truth_rows += annotations
    counts = [len(sample.labels) for sample in samples]
    none = np.zeros(0)
    objects = Objects(
        images=np.repeat(np.arange(len(samples)), counts),
        labels=np.concatenate([none, *(one.labels for one in samples)]).astype(np.int64),
        boxes=np.concatenate([np.zeros((0, 4)), *(one.boxes.astype(np.float64) for one in samples)]),
        areas=np.concatenate([none, *(one.areas.astype(np.float64) for one in samples)]),
        crowd=np.concatenate([none, *(one.is_crowd for one in samples)]).astype(np.bool_),
    )
    ids = [head["id"] for head in heads]
    return Tables(
        categories=dataset.categories,
        ids=ids,
        names=[str(head["file_name"]) for head in heads],
        sizes=np.array([one.image.shape[:2] for one in samples], np.int64).reshape(-1, 2),
        places=np.array([_place(head, number) for number, head in enumerate(heads)], np.int64),
        objects=objects,
        found=_found(rows, ids, dataset, where),
        truth_rows=truth_rows,
        found_rows=rows,
    )


def _place(head: dict[str, Any], number: int) -> int:
    given = head.get("index", number)
    return given if isinstance(given, int) and given >= 0 else number


def _found(rows: Sequence[dict[str, Any]], ids: Sequence[int | str], dataset: CocoDataset, where: str) -> Found:
    """Return the rows as arrays, sorted by image and score."""
    index_of = {str(identity): index for index, identity in enumerate(ids)}
    label_of = {str(category.id): category.label for category in dataset.categories}
    images = np.zeros(len(rows), np.int64)
    labels, scores, boxes = images.copy(), np.zeros(len(rows)), np.zeros((len(rows), 4))
    for number, row in enumerate(rows):
        image, label = index_of.get(str(row.get("image_id"))), label_of.get(str(row.get("category_id")))
        if image is None or label is None:
            name = "image_id" if image is None else "category_id"
            raise DataError(f"{where}: row {number}: {name} {str(row.get(name))[:60]!r} is not in {dataset.name}")
        images[number], labels[number] = image, label
        boxes[number] = _numbers(row.get("bbox"), 4, f"{where}: row {number}: bbox")
        scores[number] = _numbers([row.get("score")], 1, f"{where}: row {number}: score")[0]
    boxes[:, 2:] += boxes[:, :2]
    order = np.lexsort((-scores, images))
    return Found(images[order], labels[order], boxes[order], scores[order], order)


def _numbers(given: Any, count: int, where: str) -> list[float]:
    numbers = isinstance(given, list) and len(given) == count and all(type(one) in (int, float) for one in given)
    # Beyond 1e9 no picture has pixels, and squares would overflow.
    if not numbers or not all(math.isfinite(one) and abs(one) < 1e9 for one in given):
        raise DataError(f"{where}: expected {count} finite number{'s' if count > 1 else ''}, found {str(given)[:60]}")
    return [float(one) for one in given]
