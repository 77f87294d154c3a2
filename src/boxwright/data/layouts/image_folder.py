"""Hugging Face's `imagefolder`: pictures, and `metadata.jsonl` or `metadata.csv` with `file_name` and `objects`.

https://huggingface.co/docs/datasets/image_dataset
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.data.image_io import read_header
from boxwright.data.layouts.hugging_face import Row, make_row, rows_as_coco
from boxwright.data.layouts.json_files import as_object, as_text, parse_json
from boxwright.data.layouts.places import beginning_of, file_in
from boxwright.data.picture_files import PictureFiles
from boxwright.data.reading import numbered_lines, read_text

_METADATA = ("metadata.jsonl", "metadata.csv")


def is_image_folder(path: Path) -> bool:
    """Return whether a folder has a `metadata` file that tells of objects, or a path is one."""
    file = _file(path)
    first = beginning_of(file).partition("\n")[0] if file is not None else ""
    return '"objects"' in first or "objects" in first.strip().split(",")


def _file(path: Path) -> Path | None:
    return next((file for name in _METADATA if (file := file_in(path, name)) is not None), None)


def read_image_folder(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return an `imagefolder` as the content of a COCO file; classes that are numbers are named by them.

    Raises:
        DataError: If something is not as Hugging Face describes it, or the boxes' meaning is not clear.
    """
    file = _file(path) or path
    rows = [
        make_row(as_text(values.get("file_name"), f"{where}: file_name"), values, where)
        for where, values in _rows(file)
    ]
    pictures = PictureFiles(image_folder or file.parent)

    def size_of(row: Row) -> tuple[int, int]:
        return read_header(pictures.find(row.name, row.where)[0]).size_for(None, upright=True)

    return rows_as_coco(file, rows, size_of, None)


def _rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row with its place."""
    if file.suffix == ".jsonl":
        for number, line in numbered_lines(file):
            where = f"{file}: line {number}"
            yield where, as_object(parse_json(line, where), where)
        return
    try:
        for number, row in enumerate(csv.DictReader(io.StringIO(read_text(file))), start=1):
            where = f"{file}: row {number}"
            objects = row.get("objects")
            yield where, {"file_name": row.get("file_name"), "objects": parse_json(objects, where) if objects else None}
    except csv.Error as error:
        raise DataError(f"{file}: not CSV: {error}") from None
