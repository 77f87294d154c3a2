"""Truth and detections of all images as flat arrays, read from lists of JSON that need not fit in memory.

Dimensions: I images, N objects, D detections.
"""

from __future__ import annotations

import codecs
import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import cause, shown
from boxwright.data.coco import CocoDataset
from boxwright.types import Categories

_CHUNK = 1 << 20  # bytes of a list that are read at a time
_SPACE = " \t\n\r"
Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _BoxTable:
    """Boxes, image by image, as columns.

    Attributes:
        images: int64 [N]; the index of the image.
        labels: int64 [N].
        boxes: float64 [N, 4], xyxy in pixels of the image.
    """

    images: Indices
    labels: Indices
    boxes: Floats

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: Any) -> Self:
        return type(self)(**{column.name: getattr(self, column.name)[chosen] for column in fields(self)})


@dataclass(frozen=True, eq=False)
class ObjectTable(_BoxTable):
    """All objects, image by image.

    Attributes:
        areas: float64 [N]; of the mask where the truth has one.
        crowd: bool [N]; whether the box stands for many objects, and does not count.
    """

    areas: Floats
    crowd: Bools


@dataclass(frozen=True, eq=False)
class DetectionTable(_BoxTable):
    """All detections, image by image; within an image best first, ties as in the file.

    Attributes:
        scores: float64 [D].
        rows: int64 [D]; the index of the row in the file.
    """

    scores: Floats
    rows: Indices


@dataclass(frozen=True, eq=False)
class Tables:
    """What a report is made from.

    Attributes:
        ids: Of the images, as in the files.
        names: Of the images' files.
        sizes: int64 [I, 2]; height and width.
        places: int64 [I]; the index of each image in the data that was evaluated.
        truth_rows: The annotation of each object, for masks, keypoints and ids.
        found_rows: The rows of detections that have a mask or keypoints, by their index in the file.
    """

    categories: Categories
    ids: Sequence[int | str]
    names: Sequence[str]
    sizes: Indices
    places: Indices
    objects: ObjectTable
    detections: DetectionTable
    truth_rows: Sequence[dict[str, Any]] = field(default_factory=list)
    detection_rows: Mapping[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def class_names(self) -> list[str]:
        """The classes' names, in the order of `classes`."""
        return [category.title for category in self.categories]

    @property
    def classes(self) -> Indices:
        """The classes' labels, int64 [K], ascending."""
        return np.array([category.label for category in self.categories], np.int64)


def read_tables(dataset: CocoDataset, detections: str | Path) -> Tables:
    """Return the tables of a data set's truth and of COCO's file of results.

    Raises:
        DataError: If they are not COCO's, or detections are of images or classes that the truth lacks.
    """
    samples, heads, truth_rows = [], [], []
    for index in range(len(dataset)):
        head, annotations = dataset.rows(index)
        samples.append(dataset.truth(index))
        heads.append(head)
        truth_rows += annotations
    counts = [len(sample.labels) for sample in samples]
    none = np.zeros(0)
    objects = ObjectTable(
        images=np.repeat(np.arange(len(samples)), counts),
        labels=np.concatenate([none, *(sample.labels for sample in samples)]).astype(np.int64),
        boxes=np.concatenate([np.zeros((0, 4)), *(sample.boxes.astype(np.float64) for sample in samples)]),
        areas=np.concatenate([none, *(sample.areas.astype(np.float64) for sample in samples)]),
        crowd=np.concatenate([none, *(sample.is_crowd for sample in samples)]).astype(np.bool_),
    )
    ids = [head["id"] for head in heads]
    detection_columns, detection_rows = _read_detections(detections, ids, dataset)
    return Tables(
        categories=dataset.categories,
        ids=ids,
        names=[str(head["file_name"]) for head in heads],
        sizes=np.array([sample.image.shape[:2] for sample in samples], np.int64).reshape(-1, 2),
        places=np.array([_place(head, number) for number, head in enumerate(heads)], np.int64),
        objects=objects,
        detections=detection_columns,
        truth_rows=truth_rows,
        detection_rows=detection_rows,
    )


def _place(head: dict[str, Any], number: int) -> int:
    given = head.get("index", number)
    return given if isinstance(given, int) and given >= 0 else number


def _read_detections(
    path: str | Path, ids: Sequence[int | str], dataset: CocoDataset
) -> tuple[DetectionTable, dict[int, dict[str, Any]]]:
    """Return a file's rows as arrays, sorted by image and score; and those with masks or keypoints by index."""
    index_of = {str(identity): index for index, identity in enumerate(ids)}
    label_of = {str(category.id): category.label for category in dataset.categories}
    # As dictionaries, the ten million rows of a large evaluation would be ten gigabytes.
    images_, labels_, scores_, boxes_ = array("q"), array("q"), array("d"), array("d")
    shapes: dict[int, dict[str, Any]] = {}
    where = shown(path)
    for number, row in enumerate(read_json_list(path)):
        image, label = index_of.get(str(row.get("image_id"))), label_of.get(str(row.get("category_id")))
        if image is None or label is None:
            name = "image_id" if image is None else "category_id"
            raise DataError(f"{where}: row {number}: {name} {str(row.get(name))[:60]!r} is not in {dataset.name}")
        images_.append(image)
        labels_.append(label)
        boxes_.extend(_numbers(row.get("bbox"), 4, f"{where}: row {number}: bbox"))
        scores_.extend(_numbers([row.get("score")], 1, f"{where}: row {number}: score"))
        if row.get("segmentation") or row.get("keypoints"):
            shapes[number] = row
    images, labels, scores = np.array(images_), np.array(labels_), np.array(scores_)
    boxes = np.array(boxes_).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    order = np.lexsort((-scores, images))
    return DetectionTable(images[order], labels[order], boxes[order], scores[order], order), shapes


def _numbers(given: Any, count: int, where: str) -> list[float]:
    numbers = isinstance(given, list) and len(given) == count and all(type(number) in (int, float) for number in given)
    # Beyond 1e9 no picture has pixels, and squares would overflow.
    if not numbers or not all(math.isfinite(number) and abs(number) < 1e9 for number in given):
        raise DataError(f"{where}: expected {count} finite number{'s' if count > 1 else ''}, found {str(given)[:60]}")
    return [float(number) for number in given]


def read_json_list(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file that is a list of them; memory holds a megabyte of it, or one object if that is more.

    Raises:
        DataError: If the file cannot be read or is not JSON, or anything else; objects before the mistake have been
            yielded by then.
    """
    text = _StreamedText(path)
    if text.after_space() != "[":
        raise text.error("expected [")
    text.skip()
    if text.after_space() != "]":
        yield text.item()
        while text.after_space() == ",":
            text.skip()
            yield text.item()
    if text.after_space() != "]":
        raise text.error("expected , or ]")
    text.skip()
    if text.after_space():
        raise text.error("expected nothing after the list")


class _StreamedText:
    """The text of a file from a place on, read as far as it is needed."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._buffer, self._place, self._done = path, "", 0, False
        self._decoder, self._passed = json.JSONDecoder(), 0
        self._pieces = self._read()

    def _read(self) -> Iterator[str]:
        try:
            with Path(self._path).open("rb") as file:
                decoder = codecs.getincrementaldecoder("utf-8")()
                while chunk := file.read(_CHUNK):
                    yield decoder.decode(chunk)
                yield decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise DataError(f"{shown(self._path)}: not JSON: {error}") from None
        except (OSError, ValueError) as error:  # ValueError: a name with a null byte
            raise DataError(f"{shown(self._path)}: {cause(error)}") from None

    def _read_more(self) -> bool:
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._passed += self._place
        self._buffer, self._place = self._buffer[self._place :] + piece, 0
        return True

    def after_space(self) -> str:
        """Return the next character that is no space, and stay before it; nothing at the end."""
        while True:
            while self._place < len(self._buffer):
                if self._buffer[self._place] not in _SPACE:
                    return self._buffer[self._place]
                self._place += 1
            if not self._read_more():
                return ""

    def skip(self) -> None:
        """Pass a character."""
        self._place += 1

    def rest(self) -> str:
        """Return what of the text has been read."""
        return self._buffer[self._place :]

    def item(self) -> dict[str, Any]:
        """Pass an object and return it."""
        if self.after_space() != "{":
            raise self.error("expected an object")
        while True:
            item: dict[str, Any]
            try:
                item, self._place = self._decoder.raw_decode(self._buffer, self._place)
            except (ValueError, RecursionError) as error:
                if isinstance(error, RecursionError) or not self._read_more():
                    raise self.error(getattr(error, "msg", str(error))) from None
            else:
                return item

    def error(self, problem: str) -> DataError:
        """Return the error of a mistake at this place."""
        rest = repr(self.rest()[:20]) if self.rest() else "the end"
        where = f"character {self._passed + self._place}"
        return DataError(f"{shown(self._path)}: not JSON that is a list of objects: {problem[:200]}, {where}: {rest}")
