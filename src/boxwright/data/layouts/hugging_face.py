"""Hugging Face's data sets for detection: `imagefolder`, and Parquet files.

Rows are an image, and `objects` with boxes and classes. Boxes have no fixed meaning: `[x, y, width, height]` in most
data sets, corners in others. The data decide: a corner right of or below the other is no corner, and a box that leaves
its image has no size. Where both readings are possible, or neither, the data are refused.
https://huggingface.co/docs/datasets/object_detection
"""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError, translated
from boxwright.base.files import is_file, is_folder, shown, unique_stem, write_whole
from boxwright.data.archives import filled_folder, kept_folder
from boxwright.data.image_io import read_header
from boxwright.data.layouts.content import Content, containing_folder, file_in, files_in, read_beginning
from boxwright.data.objects import NO_OBJECTS, read_objects
from boxwright.data.parquet import open_parquet, parquet_classes
from boxwright.data.picture_files import PictureFiles
from boxwright.data.reading import as_object, as_text, numbered_lines, parse_json, read_table

_LOG = logging.getLogger("boxwright")
# Images whose sizes are looked up for the meaning of boxes.
_TRIED = 500
# Annotators draw a little beyond the border.
_SLACK = 2.0
# One reading is chosen if this many times more boxes contradict the other.
_CLEAR = 10


@dataclass(frozen=True)
class _Row:
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


def _make_row(name: str, values: dict[str, Any], where: str) -> _Row:
    """Return an image's row from its columns.

    Raises:
        DataError: If its objects are not boxes and classes, as many of these as of those.
    """
    sides = [values.get("height"), values.get("width")]
    known = all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides)
    objects = values.get("objects")
    found = read_objects(objects, f"{where}: objects") if objects is not None else NO_OBJECTS
    return _Row(name, where, (sides[0], sides[1]) if known else None, found.boxes, found.classes)  # type: ignore[arg-type]  # checked


def _rows_as_coco(
    path: Path, rows: Sequence[_Row], find: Callable[[_Row], Path], names: Sequence[str] | None
) -> dict[str, Any]:
    """Return rows as the content of a COCO file.

    Args:
        path: Of the data, for messages.
        find: Returns a row's picture, which is read for its size where the row does not state it.
        names: The classes, by number; if None, a class without a name is named by its number.

    Raises:
        DataError: If the meaning of the boxes is not clear, or a class has no name among those given.
    """
    corners = _are_corners(path, rows, find)
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


def _are_corners(path: Path, rows: Sequence[_Row], find: Callable[[_Row], Path]) -> bool:
    """Return whether boxes are corners; if not, they are a corner and a size."""
    filled = [row for row in rows if row.boxes]
    if not filled:
        return False
    step = -(-len(filled) // _TRIED)
    tried = filled[::step]
    not_corners = not_sizes = boxes = 0
    largest = 0.0
    for row in tried:
        height, width = row.size or read_header(find(row)).size_for(None, upright=True)
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


# `imagefolder`: pictures, and `metadata.jsonl` or `metadata.csv` with `file_name` and `objects`.
# https://huggingface.co/docs/datasets/image_dataset
_METADATA = ("metadata.jsonl", "metadata.csv")


def is_image_folder(path: Path) -> bool:
    """Return whether a folder has a `metadata` file that tells of objects, or a path is one."""
    file = _metadata_file(path)
    first = read_beginning(file).partition("\n")[0] if file is not None else ""
    return '"objects"' in first or "objects" in first.strip().split(",")


def _metadata_file(path: Path) -> Path | None:
    return next((file for name in _METADATA if (file := file_in(path, name)) is not None), None)


def read_image_folder(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return an `imagefolder` as the content of a COCO file; classes that are numbers are named by them.

    Raises:
        DataError: If something is not as Hugging Face describes it, or the boxes' meaning is not clear.
    """
    file = _metadata_file(path) or path
    rows = [
        _make_row(as_text(values.get("file_name"), f"{where}: file_name"), values, where)
        for where, values in _metadata_rows(file)
    ]
    pictures = PictureFiles(image_folder or file.parent)
    return _rows_as_coco(file, rows, lambda row: pictures.find(row.name, row.where)[0], None)


def _metadata_rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row with its place."""
    if file.suffix == ".jsonl":
        for number, line in numbered_lines(file):
            where = f"{file}: line {number}"
            yield where, as_object(parse_json(line, where), where)
        return
    for where, row in read_table(file, row="row", first=1):
        objects = row.get("objects")
        yield where, {"file_name": row.get("file_name"), "objects": parse_json(objects, where) if objects else None}


# Parquet: pictures as bytes in `image`. They are written to the cache once, as readers want files. A shard
# `train-00000-of-00002.parquet` stands for all of its split.
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
    return kept_folder(shards) if shards else containing_folder(path)


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
    for number, (where, values) in enumerate(_parquet_rows(shards, (_OBJECTS, "height", "width"))):
        if _number(number) not in pictures:
            raise DataError(f"{where}: no picture {_number(number)} in {shown(folder)}")
        rows.append(_make_row(pictures[_number(number)], values, where))
    return _rows_as_coco(path, rows, lambda row: folder / row.name, parquet_classes(_schema(shards[0])))


def _number(row: int) -> str:
    return f"{row:08d}"


def _write_pictures(shards: list[Path], folder: Path) -> None:
    """Write each row's picture, named by its number and its own name."""
    for number, (where, values) in enumerate(_parquet_rows(shards, (_IMAGE,))):
        picture = values.get(_IMAGE)
        data = picture.get("bytes") if isinstance(picture, dict) else picture
        if not isinstance(data, bytes) or not data:
            raise DataError(f"{where}: image: expected the bytes of a picture, found {str(picture)[:60]}")
        named = picture.get("path") if isinstance(picture, dict) else None
        stem = f"_{unique_stem(Path(named).stem, set())}" if isinstance(named, str) and named else ""
        ending = next((ending for magic, ending in _KINDS.items() if data.startswith(magic)), ".img")
        write_whole(folder / f"{_number(number)}{stem}{ending}", data)


def _parquet_rows(shards: list[Path], wanted: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the wanted columns of each row, as far as they are there, with the row's place."""
    for shard in shards:
        names = set(_schema(shard).names)
        columns = [name for name in wanted if name in names]
        with translated(DataError, shown(shard)):
            batches = open_parquet(shard, shard).iter_batches(batch_size=_BATCH, columns=columns)
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


def _schema(file: Path) -> Any:
    return open_parquet(file, file).schema_arrow
