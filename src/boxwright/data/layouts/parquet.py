"""Hugging Face's Parquet files: pictures as bytes in `image`, boxes and classes in `objects`.

Pictures are written to the cache once, as readers want files. A shard `train-00000-of-00002.parquet` stands for all of
its split.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError, translated
from boxwright.base.files import is_file, is_folder, shown, unique_stem, write_whole
from boxwright.data.image_io import read_header
from boxwright.data.kept_folder import filled_folder, kept_folder
from boxwright.data.layouts.hugging_face import Row, make_row, rows_as_coco
from boxwright.data.layouts.places import files_in, folder_of

_ENDING = ".parquet"
_SHARD = re.compile(r"(?P<split>.+)-[0-9]{5}-of-[0-9]{5}(-[0-9a-f]+)?\.parquet")
_IMAGE, _OBJECTS = "image", "objects"
# Pictures that are in memory at once.
_BATCH = 32
_KINDS = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp", b"RIFF": ".webp", b"II*": ".tif"}


def is_parquet(path: Path) -> bool:
    """Return whether a file, or the only split in a folder or its `data`, is such a Parquet file."""
    files = _shards(path)
    if not files or importlib.util.find_spec("pyarrow") is None:
        return bool(files)  # reading them says what to install
    try:
        return {_IMAGE, _OBJECTS} <= set(_schema(files[0]).names)
    except DataError:
        return False


def _shards(path: Path) -> list[Path]:
    """Return the files of one split, in order; none if there are several."""
    if is_file(path):
        if path.suffix.lower() != _ENDING:
            return []
        return [file for file in files_in(path.parent, _ENDING) if _split(file) == _split(path)]
    for folder in (path, path / "data"):
        if is_folder(folder) and (files := files_in(folder, _ENDING)):
            return files if len({_split(file) for file in files}) == 1 else []
    return []


def _split(file: Path) -> str:
    return match["split"] if (match := _SHARD.fullmatch(file.name)) else file.name


def parquet_folder(path: Path) -> Path:
    """Return the folder in the cache for a split's pictures; they are written when the split is read."""
    shards = _shards(path)
    return kept_folder(shards) if shards else folder_of(path)


def read_parquet(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return a split as the content of a COCO file; the classes' names are those that its schema has, if any.

    Raises:
        DataError: If PyArrow is not installed, or something is not as Hugging Face writes it.
        OutputError: If the pictures cannot be written to the cache.
    """
    shards = _shards(path)
    if not shards:
        raise DataError(f"{shown(path)}: expected Parquet files of one split")
    folder = image_folder or filled_folder(shards, lambda into: _write_pictures(shards, into))
    pictures = {file.stem.partition("_")[0]: file.name for file in files_in(folder)}
    rows = []
    for number, (where, values) in enumerate(_rows(shards, (_OBJECTS, "height", "width"))):
        if _number(number) not in pictures:
            raise DataError(f"{where}: no picture {_number(number)} in {shown(folder)}")
        rows.append(make_row(pictures[_number(number)], values, where))

    def size_of(row: Row) -> tuple[int, int]:
        return read_header(folder / row.name).size_for(None, upright=True)

    return rows_as_coco(path, rows, size_of, _class_names(_schema(shards[0])))


def _number(row: int) -> str:
    return f"{row:08d}"


def _write_pictures(shards: list[Path], folder: Path) -> None:
    """Write each row's picture, named by its number and its own name."""
    for number, (where, values) in enumerate(_rows(shards, (_IMAGE,))):
        picture = values.get(_IMAGE)
        data = picture.get("bytes") if isinstance(picture, dict) else picture
        if not isinstance(data, bytes) or not data:
            raise DataError(f"{where}: image: expected the bytes of a picture, found {str(picture)[:60]}")
        named = picture.get("path") if isinstance(picture, dict) else None
        stem = f"_{unique_stem(Path(named).stem, set())}" if isinstance(named, str) and named else ""
        ending = next((ending for magic, ending in _KINDS.items() if data.startswith(magic)), ".img")
        write_whole(folder / f"{_number(number)}{stem}{ending}", data)


def _rows(shards: list[Path], wanted: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the wanted columns of each row, as far as they are there, with the row's place."""
    for shard in shards:
        names = set(_schema(shard).names)
        columns = [name for name in wanted if name in names]
        with translated(DataError, shown(shard)):
            batches = _open_parquet(shard).iter_batches(batch_size=_BATCH, columns=columns)
        number = 0
        while True:
            with translated(DataError, shown(shard)):
                batch = next(batches, None)
                values = [] if batch is None else batch.to_pylist()
            if batch is None:
                break
            for row in values:
                number += 1
                yield f"{shown(shard)}: row {number}", row


def _open_parquet(file: Path) -> Any:
    """Return a Parquet file, opened."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(f"{shown(file)}: Parquet needs PyArrow: pip install 'boxwright[parquet]'") from None
    with translated(DataError, shown(file)):
        return ParquetFile(file)


def _schema(file: Path) -> Any:
    return _open_parquet(file).schema_arrow


def _class_names(schema: Any) -> list[str] | None:
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
