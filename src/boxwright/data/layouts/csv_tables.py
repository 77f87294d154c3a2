"""CSV tables of boxes in pixels: the raccoon tutorial's, which Roboflow exports for TensorFlow, and RetinaNet's.

The first has a header with `filename`, `class`, `xmin`, `ymin`, `xmax` and `ymax` in any order, and may have `width`
and `height`. The second has none: a line is `path,x1,y1,x2,y2,class`, empty but for the path if the picture has no
object; `classes.csv` beside it lists the classes. https://github.com/fizyr/keras-retinanet
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import is_file
from boxwright.base.text import from_cell
from boxwright.data.layouts.content import Content
from boxwright.data.reading import is_number, parse_number, parse_numbers, read_text, reading_csv, whole_number
from boxwright.data.rotated import Box

_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_NEEDED = ("filename", "class", *_CORNERS)
# RetinaNet's columns, by the names of the other table.
_HEADERLESS = ("filename", *_CORNERS, "class")
_CLASSES = "classes.csv"


def is_csv_table_text(text: str) -> bool:
    """Return whether a file is one of the two tables, by its beginning."""
    return _columns(text) is not None


def _columns(text: str) -> tuple[str, ...] | None:
    """Return the names of the columns by the first line, None if it is of neither table."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    words = [word.strip() for word in next(csv.reader([first], delimiter=_delimiter(text)), [])]
    names = tuple(word.lower() for word in words)
    if all(name in names for name in _NEEDED):
        return names
    if len(words) != len(_HEADERLESS) or not words[0] or is_number(words[0]):
        return None
    boxed = all(map(is_number, words[1:5])) and bool(words[5])
    return _HEADERLESS if boxed or not any(words[1:]) else None


def _delimiter(text: str) -> str:
    """Return the delimiter; spreadsheets write semicolons in countries with decimal commas."""
    first = text.lstrip().split("\n", 1)[0]
    return ";" if ";" in first and "," not in first else ","


def read_csv_table(file: Path) -> dict[str, Any]:
    """Return a table as the content of a COCO file; rows without a class and a box are pictures without objects.

    A row that cannot be read is counted, and its picture left out, whose object would be background.

    Raises:
        DataError: If no row can be read.
    """
    text = read_text(file)
    columns = _columns(text)
    if columns is None:
        raise DataError(
            f"{file}: expected the columns {', '.join(_NEEDED)}, or path,x1,y1,x2,y2,class without a header"
        )
    content = Content(file, _class_names(file.with_name(_CLASSES)) if columns is _HEADERLESS else None)
    rows = list(_rows(text, columns, file, 0 if columns is _HEADERLESS else 1))
    boxes, problems = _boxes(rows)
    if problems and len(problems) == len({row["filename"] for _, row in rows}):
        raise DataError(next(iter(problems.values())))
    for problem in problems.values():
        content.leave_out(f"picture with a row that cannot be read, such as {problem}")
    for (where, row), box in zip(rows, boxes, strict=True):
        if row["filename"] not in problems:
            image = content.add_image(row["filename"], _size(row, where))
            if box is not None:
                content.add(image, row["class"], box, where)
    return content.as_coco()


def _boxes(rows: Sequence[tuple[str, dict[str, str]]]) -> tuple[list[Box | None], dict[str, str]]:
    """Return each row's box, None if it has none, and by picture what is wrong with its first bad row."""
    boxes: list[Box | None] = []
    problems: dict[str, str] = {}
    for where, row in rows:
        box = None
        try:
            if not row["filename"]:
                raise DataError(f"{where}: no file name")
            if any(row[name] for name in ("class", *_CORNERS)):
                if not row["class"]:
                    raise DataError(f"{where}: a box without a class")
                x_min, y_min, x_max, y_max = parse_numbers((row[name] for name in _CORNERS), where)
                box = x_min, y_min, x_max, y_max
            _size(row, where)
        except DataError as error:
            problems.setdefault(row["filename"], str(error))
        boxes.append(box)
    return boxes, problems


def _rows(text: str, columns: tuple[str, ...], file: Path, headers: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row of a table after its headers, by its columns, with its place."""
    with reading_csv(file):
        rows = csv.reader(io.StringIO(text), delimiter=_delimiter(text))
        for number, words in enumerate(rows, start=1):
            where = f"{file}: row {number}"
            stripped = [from_cell(word.strip()) for word in words]
            if not any(stripped) or number <= headers:
                continue
            if len(stripped) != len(columns):
                raise DataError(f"{where}: expected {len(columns)} columns, found {len(stripped)}")
            yield where, dict(zip(columns, stripped, strict=True))


def _size(row: dict[str, str], where: str) -> tuple[int, int] | None:
    sides = [row.get("height", ""), row.get("width", "")]
    if not all(sides):
        return None
    height, width = (whole_number(parse_number(side, where), where) for side in sides)
    return height, width


def _class_names(file: Path) -> list[str] | None:
    """Return the classes in the order of their numbers; None without a file of them."""
    if not is_file(file):
        return None
    names: dict[int, str] = {}
    for where, row in _rows(read_text(file), ("name", "number"), file, 0):
        names[whole_number(parse_number(row["number"], where), where)] = row["name"]
    return [names[number] for number in sorted(names)]
