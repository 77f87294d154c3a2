"""Rows of Hugging Face's data sets for detection: an image, and `objects` with boxes and classes.

Their boxes have no fixed meaning: `[x, y, width, height]` in most data sets, corners in others. The data decide: a
corner right of or below the other is no corner, and a box that leaves its image has no size. Where both readings are
possible, or neither, the data are refused. https://huggingface.co/docs/datasets/object_detection
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import shown
from boxwright.data.layouts.content import Content
from boxwright.data.layouts.json_files import as_list
from boxwright.data.reading import finite_number

_LOG = logging.getLogger("boxwright")
_BOXES = ("bbox", "bboxes", "boxes")
_CLASSES = ("categories", "category", "label", "labels", "class", "classes", "category_id", "class_id", "name")
# Images whose sizes are looked up for the meaning of boxes.
_TRIED = 500
# Annotators draw a little beyond the border.
_SLACK = 2.0
# One reading is chosen if this many times more boxes contradict the other.
_CLEAR = 10


@dataclass(frozen=True)
class Row:
    """One image of a data set.

    Attributes:
        size: (height, width), if the row states it.
        boxes: float [N, 4], of either meaning.
        classes: N names or numbers.
    """

    name: str
    where: str
    size: tuple[int, int] | None
    boxes: list[list[float]]
    classes: list[int | str]


def make_row(name: str, values: dict[str, Any], where: str) -> Row:
    """Return an image's row from its columns.

    Raises:
        DataError: If its objects are not boxes and classes, as many of these as of those.
    """
    sides = [values.get("height"), values.get("width")]
    known = all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides)
    boxes, classes = _objects(values.get("objects"), where)
    return Row(name, where, (sides[0], sides[1]) if known else None, boxes, classes)  # type: ignore[arg-type]  # checked


def _objects(value: Any, where: str) -> tuple[list[list[float]], list[int | str]]:
    if value is None:
        return [], []
    where = f"{where}: objects"
    if isinstance(value, list):  # of objects, in place of an object of lists
        rows = [row for row in value if isinstance(row, dict)]
        if len(rows) < len(value):
            raise DataError(f"{where}: expected objects, found {str(value)[:60]}")
        value = {key: [row.get(key) for row in rows] for key in (rows[0] if rows else {_BOXES[0]: 0, _CLASSES[0]: 0})}
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected an object with lists, found {str(value)[:60]}")
    columns = [next((key for key in keys if key in value), None) for keys in (_BOXES, _CLASSES)]
    if columns[0] is None or columns[1] is None:
        wanted = "bbox" if columns[0] is None else "category"
        raise DataError(f"{where}: no {wanted}; its keys are {', '.join(map(str, value))[:100]}")
    boxes, classes = (as_list(value[str(key)], f"{where}: {key}") for key in columns)
    if len(boxes) != len(classes):
        raise DataError(f"{where}: {len(boxes)} boxes, but {len(classes)} classes")
    for name in classes:
        if isinstance(name, bool) or not isinstance(name, int | str):
            raise DataError(f"{where}: expected a class's name or number, found {repr(name)[:60]}")
    return [_read_box(box, where) for box in boxes], classes


def _read_box(box: Any, where: str) -> list[float]:
    if not isinstance(box, list) or len(box) != 4:
        raise DataError(f"{where}: expected a bbox of four numbers, found {repr(box)[:60]}")
    return [finite_number(side, f"{where}: bbox") for side in box]


def rows_as_coco(
    path: Path, rows: Sequence[Row], size_of: Callable[[Row], tuple[int, int]], names: Sequence[str] | None
) -> dict[str, Any]:
    """Return rows as the content of a COCO file.

    Args:
        path: Of the data, for messages.
        size_of: Returns the (height, width) of a row's image.
        names: The classes, by number; if None, a class without a name is named by its number.

    Raises:
        DataError: If the meaning of the boxes is not clear, or a class has no name among those given.
    """
    corners = _are_corners(path, rows, size_of)
    numbers = sorted({name for row in rows for name in row.classes if isinstance(name, int)})
    texts = sorted({name for row in rows for name in row.classes if isinstance(name, str)})
    content = Content(path, names or [*map(str, numbers), *texts])
    for row in rows:
        image = content.add_image(row.name, row.size)
        for box, label in zip(row.boxes, row.classes, strict=True):
            x, y, right, below = box
            high = (right, below) if corners else (x + right, y + below)
            content.add(image, _class_name(label, names, row.where), (x, y, *high), row.where)
    return content.as_coco()


def _class_name(label: int | str, names: Sequence[str] | None, where: str) -> str:
    if isinstance(label, str) or names is None:
        return str(label)
    if not 0 <= label < len(names):
        raise DataError(f"{where}: class {label}: expected 0 to {len(names) - 1}")
    return names[label]


def _are_corners(path: Path, rows: Sequence[Row], size_of: Callable[[Row], tuple[int, int]]) -> bool:
    """Return whether boxes are corners; if not, they are a corner and a size."""
    filled = [row for row in rows if row.boxes]
    if not filled:
        return False
    step = -(-len(filled) // _TRIED)
    tried = filled[::step]
    not_corners = not_sizes = boxes = 0
    largest = 0.0
    for row in tried:
        height, width = row.size or size_of(row)
        for x, y, right, below in row.boxes:
            boxes += 1
            largest = max(largest, x, y, right, below)
            not_corners += right <= x or below <= y
            not_sizes += x + right > width + _SLACK or y + below > height + _SLACK
    if largest <= 1:
        raise DataError(f"{shown(path)}: bbox has shares of the image, from 0 to 1; boxes in pixels are expected")
    if not_sizes > _CLEAR * not_corners:
        _LOG.warning("%s: bbox is read as corners: as sizes, %d of %d boxes leave their image", path, not_sizes, boxes)
        return True
    if not_corners > _CLEAR * not_sizes:
        return False
    raise DataError(
        f"{shown(path)}: bbox may be [x, y, width, height] or the corners [x_min, y_min, x_max, y_max]: of {boxes} "
        f"boxes, {not_sizes} leave their image as the former, {not_corners} are turned inside out as the latter; write "
        "them to a COCO file, where they are [x, y, width, height]"
    )
