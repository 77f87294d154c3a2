"""The objects of a picture as rows of Parquet, `metadata.jsonl` and WebDataset's JSON have them: boxes and classes.

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
_CROWDS = "iscrowd"


@dataclass(frozen=True)
class Objects:
    """The objects of one picture.

    Attributes:
        boxes: N times four numbers, of whatever meaning.
        classes: N names or numbers.
        crowds: Of each, whether it stands for many objects.
    """

    boxes: list[list[float]]
    classes: list[int | str]
    crowds: list[bool]


NO_OBJECTS = Objects([], [], [])


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
        value = {key: [row.get(key) for row in rows] for key in rows[0]}
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected an object with lists, found {str(value)[:60]}")
    columns = [next((key for key in keys if key in value), None) for keys in (_BOXES, _CLASSES)]
    if columns[0] is None or columns[1] is None:
        wanted = "bbox" if columns[0] is None else "category"
        raise DataError(f"{where}: no {wanted}; its keys are {', '.join(map(str, value))[:100]}")
    boxes, classes = (as_list(value[str(key)], f"{where}: {key}") for key in columns)
    crowds = as_list(value.get(_CROWDS) or [0] * len(boxes), f"{where}: {_CROWDS}")
    if len(boxes) != len(classes):
        raise DataError(f"{where}: {len(boxes)} boxes, but {len(classes)} classes")
    if len(boxes) != len(crowds):
        raise DataError(f"{where}: {len(boxes)} boxes, but {_CROWDS} of {len(crowds)}")
    for name in classes:
        if isinstance(name, bool) or not isinstance(name, int | str):
            raise DataError(f"{where}: expected a class's name or number, found {repr(name)[:60]}")
    return Objects([_read_box(box, where) for box in boxes], classes, [bool(crowd) for crowd in crowds])


def _read_box(box: Any, where: str) -> list[float]:
    if not isinstance(box, list) or len(box) != 4:
        raise DataError(f"{where}: expected a bbox of four numbers, found {repr(box)[:60]}")
    return [finite_number(side, f"{where}: bbox") for side in box]
