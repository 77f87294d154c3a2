"""Large image collections: folders, TFRecords, WebDataset archives, Parquet; local or in an object store."""

from __future__ import annotations

import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import cause
from boxwright.data.tf_example import encoded_image, read_features
from boxwright.data.tfrecord import TFRecordFile
from boxwright.inference.files import IMAGES, find_files
from boxwright.inference.stores import Store, is_address, open_file, open_parquet, require_pyarrow

_RECORDS = re.compile(r"\.tf_?records?|\.records?|-[0-9]{5}-of-[0-9]{5}$", re.IGNORECASE)
_ARCHIVES = (".tar", ".tar.gz", ".tgz")
# Rows of Parquet in memory at a time, each of which holds an image file.
_BATCH = 64
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Item:
    """An image file in a collection.

    Attributes:
        id: Its address, or its position in a container.
        data: The file's bytes; empty if they could not be read.
    """

    id: str
    data: bytes = b""
    error: str = ""


@dataclass(frozen=True)
class Unit:
    """A unit of work: one container, or some image files.

    Attributes:
        number: From 0.
    """

    number: int
    kind: str
    addresses: tuple[str, ...]


def list_units(words: Sequence[str], size: int) -> list[Unit]:
    """Return the deterministic division of the user's input into units: image files first, then containers, by name.

    Args:
        words: Files, folders (recursively), patterns, lists, addresses of files or folders in object stores.
        size: Image files per unit; a container is one unit, however many images it has.

    Raises:
        DataError: If nothing matches, or a file is of an unknown kind.
    """
    # Only files that the user named are refused: a folder may have other files beside its images.
    named = set(words)
    files = [(address, _kind(address)) for word in words for address in _files(word)]
    strange = next((address for address, kind in files if kind == "other" and address in named), None)
    if strange is not None:
        raise DataError(f"{strange}: its name is not that of an image, TFRecords, an archive (.tar) or Parquet")
    images = [address for address, kind in files if kind == "images"]
    groups = [("images", tuple(images[start : start + size])) for start in range(0, len(images), size)]
    groups += [(kind, (address,)) for address, kind in files if kind not in ("images", "other")]
    if not groups:
        raise DataError(f"{', '.join(words)}: no image, TFRecord, archive or Parquet file")
    return [Unit(number, kind, addresses) for number, (kind, addresses) in enumerate(groups)]


def read_items(unit: Unit, column: str = "") -> Iterator[Item]:
    """Yield a unit's images in order. What cannot be read becomes an item with an error; nothing is raised.

    Args:
        column: The Parquet column with the images; empty to detect it.
    """
    try:
        yield from _READERS[unit.kind](unit, column)
    except (DataError, tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        yield Item(unit.addresses[0], error=f"the rest of this file cannot be read: {cause(error)}")


def _files(word: str) -> list[str]:
    if is_address(word):
        return [word] if _kind(word) != "other" else Store(word).files()
    return Store(word).files() if Path(word).is_dir() else [str(path) for path in find_files([word])]


def _kind(address: str) -> str:
    name = address.split("?", 1)[0].rsplit("/", 1)[-1].lower()
    if name.endswith(".parquet"):
        return "parquet"
    if name.endswith(_ARCHIVES):
        return "archive"
    if Path(name).suffix in IMAGES:
        return "images"
    return "records" if _RECORDS.search(name) else "other"


def _images(unit: Unit, _: str) -> Iterator[Item]:
    yield from map(_image, unit.addresses)


def _image(address: str) -> Item:
    try:
        with open_file(address) as file:
            return Item(address, file.read())
    except (DataError, OSError) as error:
        return Item(address, error=str(error))


def _records(unit: Unit, _: str) -> Iterator[Item]:
    """Yield a TFRecord file's images; a file in an object store is copied first, as its checksums cover all of it."""
    (address,) = unit.addresses
    if not is_address(address):
        yield from _read_records(TFRecordFile(address), address)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / address.split("?", 1)[0].rsplit("/", 1)[-1]
        with open_file(address) as source, copy.open("wb") as target:
            while chunk := source.read(_CHUNK):
                target.write(chunk)
        yield from _read_records(TFRecordFile(copy), address)


def _read_records(file: TFRecordFile, address: str) -> Iterator[Item]:
    for index in range(len(file)):
        place = f"{address}#{index}"
        try:
            yield Item(place, encoded_image(read_features(file[index], place), place))
        except DataError as error:
            yield Item(place, error=str(error))


def _archive(unit: Unit, _: str) -> Iterator[Item]:
    """Yield a WebDataset archive's images, in one sequential pass."""
    (address,) = unit.addresses
    with open_file(address) as file, tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            opened = archive.extractfile(member) if Path(member.name).suffix.lower() in IMAGES else None
            if opened is not None:
                yield Item(f"{address}#{member.name}", opened.read())
        if address.lower().endswith(".tar"):  # decompression detects truncation otherwise
            file.seek(archive.offset)
            if len(file.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:  # tarfile accepts a truncated file
                raise DataError("it is truncated: an archive ends with a block of zeros")


def _parquet(unit: Unit, column: str) -> Iterator[Item]:
    require_pyarrow()
    from pyarrow.parquet import ParquetFile

    (address,) = unit.addresses
    number = 0
    with open_parquet(address) as opened:
        file = ParquetFile(opened)
        name = _column(file.schema_arrow, column, address)
        for batch in file.iter_batches(batch_size=_BATCH, columns=[name]):
            for value in batch.column(0).to_pylist():
                yield _cell(value, f"{address}#{number}")
                number += 1


def _column(schema: Any, wanted: str, address: str) -> str:
    """Return the column with the images: bytes, Hugging Face's {bytes, path}, or strings named like a path."""
    import pyarrow as pa

    if wanted:
        if wanted not in schema.names:
            raise DataError(f"{address}: no column {wanted!r}; found {', '.join(schema.names)[:400]}")
        return wanted
    # Bytes first: the files that paths name may be on another machine.
    for suits in (
        lambda field: pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type),
        lambda field: pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0,
        lambda field: field.name.lower() in ("path", "file", "file_name", "filename", "image", "url", "uri"),
    ):
        if names := [field.name for field in schema if suits(field)]:
            return str(names[0])
    raise DataError(f"{address}: no image column found; choose one of {', '.join(schema.names)[:400]} with --column")


def _cell(value: Any, place: str) -> Item:
    if isinstance(value, dict):
        path, value = value.get("path"), value.get("bytes")
        value = path if value is None else value
    if isinstance(value, bytes):
        return Item(place, value)
    if isinstance(value, str):
        item = _image(value)
        return Item(place, item.data, item.error)
    return Item(place, error="no image in this row")


_READERS: dict[str, Callable[[Unit, str], Iterator[Item]]] = {
    "images": _images,
    "records": _records,
    "archive": _archive,
    "parquet": _parquet,
}
