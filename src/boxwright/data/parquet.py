"""Parquet files of annotated pictures: a row has the bytes of a picture, and its objects.

Columns are those that Hugging Face's `datasets` writes: `image` (bytes, or a struct with `bytes`) and `objects`; where
they are there, `height` and `width`, and `image_id`. Files that we write say in their schema what their boxes are. A
group of rows is decoded as a whole, once while it is in use: into a file of the cache folder, which processes of a
machine share and map into memory.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError, translated
from boxwright.base.files import open_regular, open_whole, shown
from boxwright.base.remote import RemoteFile, made_file
from boxwright.data.objects import PictureRow
from boxwright.data.shard_files import File, as_file, identity, load_index, open_file, size_of

_IMAGE, _OBJECTS = "image", "objects"
_COLUMNS = (_IMAGE, _OBJECTS, "height", "width", "image_id")
# In the schema of files whose boxes are as COCO's.
BOXES_ARE_XYWH = {"boxwright": '{"boxes_are": "xywh"}'}
_INDEX_MARK = b"boxwright parquet index 1\n"
# Rows that are in memory at once, each with its picture.
_BATCH = 64


class ParquetShard:
    """One Parquet file with random access to its rows, the faster the nearer together they are.

    Attributes:
        path: A path, or a file at an address.
        in_sequence: True.
    """

    in_sequence = True

    def __init__(self, path: str | File) -> None:
        """Read how many rows each group has.

        Args:
            path: A path, an address, or a file at an address.

        Raises:
            DataError: If PyArrow is not installed, the file cannot be read, is no Parquet, or lacks a column.
        """
        self.path = as_file(path)
        if isinstance(self.path, RemoteFile):
            sizes = load_index(self.path, self.path, _INDEX_MARK, _group_sizes)
        else:  # reading them takes no longer than an index would
            with translated(DataError, shown(self.path)), open_regular(self.path) as file:
                sizes = _group_sizes(file, self.path, 0)
        self._ends = np.cumsum(sizes)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def where(self, number: int) -> str:
        """Return a row's place, for messages."""
        return f"{self.path}: row {number}"

    def class_names(self) -> list[str]:
        """Return the names of the classes, by number; empty if the file has none."""
        with translated(DataError, shown(self.path)), open_file(self.path) as file:
            return parquet_classes(open_parquet(file, self.path).schema_arrow) or []

    def __getitem__(self, number: int) -> PictureRow:
        """Return a row.

        Raises:
            DataError: If it cannot be read, or has no picture.
        """
        group = int(np.searchsorted(self._ends, number, side="right"))
        within = number - int(self._ends[group - 1] if group else 0)
        with translated(DataError, self.where(number)):
            try:
                values, names = _mapped_row(self._decoded(group), within)
            except FileNotFoundError:  # another process needed its room in the cache
                values, names = _mapped_row(self._decoded(group), within)
        picture = values.pop(_IMAGE)
        data, path = (picture.get("bytes"), picture.get("path")) if isinstance(picture, dict) else (picture, "")
        if not isinstance(data, bytes):
            raise DataError(f"{self.where(number)}: image: expected the bytes of a picture, found {str(picture)[:60]}")
        return PictureRow(data, Path(path).name if isinstance(path, str) else "", values, names)

    def _decoded(self, group: int) -> Path:
        """Return the file in the cache with a group's rows, which is written if it is not there."""
        name = f"{identity(self.path)}-{group}.arrow"

        def decode(target: Path) -> None:
            with open_file(self.path) as file, open_whole(target) as decoded:
                _decode(open_parquet(file, self.path), group, decoded)

        start = int(self._ends[group - 1]) if group else 0
        # What it takes is not known before: as much as its share of the file, as pictures are compressed already.
        share = (int(self._ends[group]) - start) / len(self)
        with open_file(self.path) as file:
            return made_file(name, int(share * size_of(self.path, file)), decode)


def require_pyarrow(path: object) -> None:
    """Raise a DataError, which names a file, if PyArrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError(f"{shown(str(path))}: Parquet needs PyArrow: pip install 'boxwright[parquet]'")


def open_parquet(source: Path | BinaryIO, path: object) -> Any:
    """Return a Parquet file, opened; `path` is its name for messages."""
    require_pyarrow(path)
    from pyarrow.parquet import ParquetFile

    with translated(DataError, shown(str(path))):
        # Threads that read ahead would hold a file of Python's when the interpreter ends, which aborts it.
        return ParquetFile(source, pre_buffer=False)


def _group_sizes(file: BinaryIO, path: File, _: int) -> NDArray[np.int64]:
    """Return the number of rows of each group."""
    opened = open_parquet(file, path)
    names = opened.schema_arrow.names
    if missing := {_IMAGE, _OBJECTS} - set(names):
        raise DataError(f"{path}: no column {' and '.join(sorted(missing))}; found {', '.join(names)[:400]}")
    metadata = opened.metadata
    return np.array([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)], np.int64)


def _decode(file: Any, group: int, target: BinaryIO) -> None:
    """Write a group's rows as Arrow's file, some in each batch."""
    import pyarrow as pa

    names = [name for name in _COLUMNS if name in file.schema_arrow.names]
    fields = [file.schema_arrow.field(name) for name in names]
    with pa.ipc.new_file(target, pa.schema(fields, file.schema_arrow.metadata)) as writer:
        for batch in file.iter_batches(_BATCH, row_groups=[group], columns=names, use_threads=False):
            writer.write_batch(batch.select(names))


def _mapped_row(path: Path, number: int) -> tuple[dict[str, Any], list[str]]:
    """Return a row of Arrow's file, and the names of its classes; a FileNotFoundError if the file is not there."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as mapped:
        rows = pa.ipc.open_file(mapped)
        batch = rows.get_batch(number // _BATCH)
        values: dict[str, Any] = batch.slice(number % _BATCH, 1).to_pylist()[0]
        return values, parquet_classes(rows.schema) or []


def states_boxes(schema: Any) -> bool:
    """Return whether a file's schema says that its boxes are as COCO's, as in files that we write."""
    metadata = schema.metadata or {}
    return all(metadata.get(key.encode()) == value.encode() for key, value in BOXES_ARE_XYWH.items())


def parquet_classes(schema: Any) -> list[str] | None:
    """Return the names of the classes from what `datasets` writes into the schema; None if there are none."""
    stored = (schema.metadata or {}).get(b"huggingface")
    try:
        features = json.loads(stored)["info"]["features"] if stored else {}
        return _class_label(features.get(_OBJECTS))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # it is for `datasets`, and numbers are names too


def _class_label(feature: Any) -> list[str] | None:
    """Return the names of the first ClassLabel in a feature, however deep."""
    if isinstance(feature, list):
        return next((names for part in feature if (names := _class_label(part))), None)
    if not isinstance(feature, dict):
        return None
    names = feature.get("names")
    if feature.get("_type") == "ClassLabel" and isinstance(names, list) and all(isinstance(n, str) for n in names):
        return names
    return next((names for part in feature.values() if (names := _class_label(part))), None)
