"""The objects of a picture as rows of Parquet, `metadata.jsonl` and WebDataset's JSON have them.

These are boxes and classes and, with COCO's names and meanings, flags, areas, outlines and keypoints.

https://huggingface.co/docs/datasets/object_detection
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from boxwright.base.errors import DataError
from boxwright.data.reading import as_list, finite_number

_BOXES = ("bbox", "bboxes", "boxes")
_CLASSES = ("categories", "category", "label", "labels", "class", "classes", "category_id", "class_id", "name")
_FLAGS = ("iscrowd", "difficult")
_NUMBERS = "area"
_SHAPES = ("segmentation", "keypoints")


@dataclass(frozen=True)
class Objects:
    """The objects of one picture.

    Attributes:
        boxes: N times four numbers, of whatever meaning.
        classes: N names or numbers.
        crowds: Of each, whether it stands for many objects.
        difficult: Of each, whether it is not counted in VOC's evaluation.
        areas: Of each, in pixels; None where it is not stated.
        outlines: Of each, COCO's polygons or run lengths, unchecked; None where there are none.
        keypoints: Of each, x, y and visibility of each point of its class, unchecked; None where there are none.
    """

    boxes: list[list[float]]
    classes: list[int | str]
    crowds: list[bool]
    difficult: list[bool]
    areas: list[float | None]
    outlines: list[Any]
    keypoints: list[Any]


NO_OBJECTS = Objects([], [], [], [], [], [], [])


@dataclass(frozen=True)
class PictureRow:
    """A picture and what a file of many says of it.

    Attributes:
        data: The picture's file.
        filename: Its name; may be empty.
        values: Among others `objects`, `height`, `width` and `image_id`, as far as they are there.
        class_names: Those of classes that are numbers, from 0; empty for the ids of a label map.
    """

    data: bytes
    filename: str
    values: dict[str, Any]
    class_names: Sequence[str] = ()


def read_objects(value: Any, where: str) -> Objects:
    """Return objects from an object of lists, or a list of objects.

    Raises:
        DataError: If they are not boxes and classes, as many of these as of those.
    """
    if isinstance(value, list):
        rows = [row for row in value if isinstance(row, dict)]
        if len(rows) < len(value):
            raise DataError(f"{where}: expected objects, found {str(value)[:60]}")
        if not rows:
            return NO_OBJECTS
        value = {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected an object with lists, found {str(value)[:60]}")
    columns = [next((key for key in keys if key in value), None) for keys in (_BOXES, _CLASSES)]
    if columns[0] is None or columns[1] is None:
        wanted = "bbox" if columns[0] is None else "category"
        raise DataError(f"{where}: no {wanted}; its keys are {', '.join(map(str, value))[:100]}")
    boxes, classes = (as_list(value[str(key)], f"{where}: {key}") for key in columns)
    if len(boxes) != len(classes):
        raise DataError(f"{where}: {len(boxes)} boxes, but {len(classes)} classes")
    others = {name: _column(value, name, len(boxes), where) for name in (*_FLAGS, _NUMBERS, *_SHAPES)}
    for name in classes:
        if isinstance(name, bool) or not isinstance(name, int | str):
            raise DataError(f"{where}: expected a class's name or number, found {repr(name)[:60]}")
    crowds, difficult = ([bool(flag) for flag in others[name]] for name in _FLAGS)
    areas = [None if area is None else finite_number(area, f"{where}: {_NUMBERS}") for area in others[_NUMBERS]]
    read = [_read_box(box, where) for box in boxes]
    return Objects(read, classes, crowds, difficult, areas, *(others[name] for name in _SHAPES))


def _column(value: dict[Any, Any], name: str, count: int, where: str) -> list[Any]:
    """Return what objects have under a name, None of each if there is nothing."""
    if not value.get(name):
        return [None] * count
    column = as_list(value[name], f"{where}: {name}")
    if len(column) != count:
        raise DataError(f"{where}: {count} boxes, but {name} of {len(column)}")
    return column


def _read_box(box: Any, where: str) -> list[float]:
    if not isinstance(box, list) or len(box) != 4:
        raise DataError(f"{where}: expected a bbox of four numbers, found {repr(box)[:60]}")
    return [finite_number(side, f"{where}: bbox") for side in box]
