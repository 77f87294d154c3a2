"""WebDataset's tar archives: the files of a sample stand side by side, with one name up to the first dot.

A sample is a picture (`a/17.jpg`) and its annotation, `a/17.json`, with `objects`. Other files are passed over.
https://github.com/webdataset/webdataset
"""

from __future__ import annotations

import tarfile
from array import array
from collections.abc import Iterator
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import BoundedFile, cause, shown
from boxwright.base.limits import RECORD_BYTES
from boxwright.data.objects import PictureRow
from boxwright.data.picture_files import PICTURE_ENDINGS
from boxwright.data.reading import as_object, parse_json
from boxwright.data.shard_files import File, as_file, load_index, open_file, size_of, unpacked_copy

# An index has two places for each sample: of the header of its picture, and of its annotation or -1.
_INDEX_MARK = b"boxwright tar index 1\n"
_GZIP = b"\x1f\x8b"
_ANNOTATION = ".json"
_KINDS = {**dict.fromkeys(PICTURE_ENDINGS, "picture"), _ANNOTATION: "annotation"}
TAR_DAMAGE = (tarfile.TarError, EOFError, OSError, ValueError, OverflowError, RecursionError)


class WebDatasetShard:
    """One archive with random access to its samples; a compressed one is unpacked into the cache folder once.

    Attributes:
        path: A path, or a file at an address.
        in_sequence: True.
    """

    in_sequence = True

    def __init__(self, path: str | File) -> None:
        """Find the samples, or load their index.

        Args:
            path: A path, an address, or a file at an address.

        Raises:
            DataError: If the file cannot be read, is no tar archive, is damaged or cut off.
        """
        self.path = as_file(path)
        try:
            with open_file(self.path) as file:
                packed = file.read(len(_GZIP)) == _GZIP
            self._plain = unpacked_copy(self.path, "gzip") if packed else self.path
            self._starts = load_index(self._plain, self.path, _INDEX_MARK, _scan).reshape(-1, 2)
        except OSError as error:
            raise DataError(f"{self.path}: {cause(error)}") from None

    def __len__(self) -> int:
        return len(self._starts)

    def where(self, number: int) -> str:
        """Return a sample's place, for messages."""
        return f"{self.path}: sample {number}"

    def __getitem__(self, number: int) -> PictureRow:
        """Return a sample.

        Raises:
            DataError: If it cannot be read, or has no annotation.
        """
        where, (picture_at, annotation_at) = self.where(number), self._starts[number].tolist()
        with open_file(self._plain) as file:
            size = size_of(self._plain, file)
            name, data = _read_member(file, picture_at, size, where)
            if annotation_at < 0:
                wanted = f"{PurePosixPath(name).name.partition('.')[0]}{_ANNOTATION}"
                raise DataError(f"{where}: {shown(name, 100)} has no annotation: no {shown(wanted, 100)} beside it")
            return PictureRow(data, PurePosixPath(name).name, _read_annotation(file, annotation_at, size, where))

    def annotations(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the place and the annotation of each sample that has one, without reading its picture.

        Raises:
            DataError: If one cannot be read.
        """
        with open_file(self._plain) as file:
            size = size_of(self._plain, file)
            for number, start in enumerate(self._starts[:, 1].tolist()):
                if start >= 0:
                    yield self.where(number), _read_annotation(file, start, size, self.where(number))


def _read_annotation(file: BinaryIO, start: int, size: int, where: str) -> dict[str, Any]:
    name, text = _read_member(file, start, size, where)
    where = f"{where}: {shown(name, 100)}"
    return as_object(parse_json(text, where), where)


def _read_member(file: BinaryIO, start: int, size: int, where: str) -> tuple[str, bytes]:
    """Return the name and the content of the member whose header is at a byte of an archive of so many bytes."""
    file.seek(start)
    try:
        with tarfile.open(fileobj=BoundedFile(file), mode="r:") as archive:  # type: ignore[call-overload]
            member = archive.next()
    except TAR_DAMAGE as error:
        raise DataError(f"{where}: at byte {start}: {cause(error)}") from None
    if member is None or not _is_plain(member):
        raise DataError(f"{where}: no file begins at byte {start}: the archive has changed, or is damaged")
    if problem := RECORD_BYTES.exceeded(member.size):
        raise DataError(f"{where}: {problem}")
    if member.size < 0 or member.offset_data + member.size > size:  # before memory is allocated
        raise DataError(f"{where}: {member.size} bytes of {shown(member.name, 100)} end outside the archive")
    file.seek(member.offset_data)
    return member.name, file.read(member.size)


def _is_plain(member: tarfile.TarInfo) -> bool:
    return member.isreg() and not member.issparse()


def _scan(file: BinaryIO, path: File, size: int) -> NDArray[np.int64]:
    """Return the places of each sample's header and of its annotation's."""
    starts = array("q")  # a list of Python's numbers takes five times the memory
    if not size:
        return np.zeros(0, np.int64)
    try:
        with tarfile.open(fileobj=BoundedFile(file), mode="r:") as archive:  # type: ignore[call-overload]
            _append_samples(starts, archive, path)
            end = archive.offset
    except TAR_DAMAGE as error:
        raise DataError(f"{path}: not a tar archive, or damaged: {cause(error)}") from None
    file.seek(end)
    block = file.read(tarfile.BLOCKSIZE)
    # tarfile takes a header that is damaged, or not there, for the archive's end.
    if block != tarfile.NUL * tarfile.BLOCKSIZE:
        what = "is damaged: no header" if len(block) == tarfile.BLOCKSIZE else "is cut off: its end is missing"
        raise DataError(f"{path}: the archive {what} at byte {end}")
    return np.array(starts, np.int64)


def _append_samples(starts: array[int], archive: tarfile.TarFile, path: File) -> None:
    """Append the place of each sample's picture, and of its annotation or -1."""
    for _, members in groupby(_members(archive), key=lambda member: member[0]):
        places: dict[str, int] = {}
        for key, kind, start in members:
            if kind in places:
                raise DataError(f"{path}: {shown(key, 100)}: a second {kind} of the same name, at byte {start}")
            places[kind] = start
        if "picture" in places:
            starts.extend((places["picture"], places.get("annotation", -1)))


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, str, int]]:
    """Yield the key of each picture and annotation, which of these it is, and the place of its header."""
    last = -1
    while (member := archive.next()) is not None:
        if member.offset <= last:  # a size below 0 leads back
            raise ValueError(f"the member at byte {member.offset} comes after that at byte {last}")
        last = member.offset
        archive.members.clear()  # type: ignore[attr-defined]  # typeshed lacks it; it would keep all
        folder, _, name = member.name.rpartition("/")
        stem, dot, ending = name.partition(".")
        kind = _KINDS.get(f"{dot}{ending.lower()}", "")
        # A Mac adds files whose names begin with a dot.
        if stem and kind and _is_plain(member):
            yield f"{folder}/{stem}", kind, member.offset
