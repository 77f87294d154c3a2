"""Files that each hold many samples: their patterns, their sets, and what is kept of them.

Where samples begin is found once, by a scan, and kept as an index file beside the file, or in a cache folder if that is
not writable. A compressed file is decompressed once into the cache folder. Of a file at an address, blocks are fetched
as they are read; an index file beside it saves the scan, which reads all of it.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError, OutputError
from boxwright.base.files import (
    cache_folder,
    is_file,
    kept_places,
    make_folder,
    open_regular,
    open_whole,
    read_bytes,
    shown,
    waiting_lock,
    write_whole,
)
from boxwright.base.remote import RemoteFile, find_remote, is_remote, remote_file

# A file on the disk, or at an address.
File = Path | RemoteFile

_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(.*)")
_WILD_INDEX = re.compile(r"-[?*\[][^/]*$")
# zlib's window sizes: 15 bits for both; 16 more ask for gzip's header.
WBITS = {"gzip": 31, "zlib": 15}
_CHUNK = 1 << 20
_INDEX = ".index"
# An index file: a mark of its kind; the file's size and time, and where samples begin, as int64; a SHA-256 of all.
_INDEX_DIGEST = 32
_OPENED_AT_ONCE = 16
# Finds where samples begin: in an open file, of a path for messages, of so many bytes.
Scan = Callable[[BinaryIO, File, int], NDArray[np.int64]]


class ShardFile(Protocol):
    """A file of samples."""

    @property
    def path(self) -> File:
        """Where it is."""
        ...

    @property
    def in_sequence(self) -> bool:
        """Whether samples that follow one another are read together, at the cost of one."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def where(self, number: int) -> str:
        """Return a sample's place, for messages."""
        ...


T_co = TypeVar("T_co", bound=ShardFile, covariant=True)


class ShardFiles(Generic[T_co]):
    """The samples of one or more files, in the order of the files and of the samples in them.

    Attributes:
        source_sizes: The number of samples of each path.
        shard_sizes: By path, the number of samples of each file, if any is read in sequence; else empty.
    """

    def __init__(self, paths: Sequence[str | Path], open_file: Callable[[File], T_co]) -> None:
        """Open the files.

        Args:
            paths: Paths or addresses, globs, or `name@count`.

        Raises:
            DataError: If a file is missing or damaged, or all are empty.
        """
        self.name = ", ".join(str(path) for path in paths)
        # Without paths, the call on an empty list raises the error that names the field.
        matches = [expand_paths([str(path)]) for path in paths] or [expand_paths([])]
        with ThreadPoolExecutor(_OPENED_AT_ONCE) as threads:  # a server answers late, but to many
            sources = [[*threads.map(open_file, files)] for files in matches]
        self.files = tuple(file for source in sources for file in source)
        self.source_sizes = tuple(sum(len(file) for file in source) for source in sources)
        in_sequence = any(file.in_sequence for file in self.files)
        self.shard_sizes = tuple(tuple(len(file) for file in source) for source in sources) if in_sequence else ()
        self._ends = np.cumsum([len(file) for file in self.files])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def locate(self, index: int) -> tuple[T_co, int]:
        """Return a sample's file, and its number there."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        # Right: an index at the end of a file belongs to the next one that has samples.
        number = int(np.searchsorted(self._ends, index, side="right"))
        return self.files[number], index - int(self._ends[number - 1] if number else 0)

    def where(self, index: int) -> str:
        """Return a sample's place, for messages."""
        file, number = self.locate(index)
        return file.where(number)


def expand_paths(patterns: Sequence[str]) -> list[File]:
    """Return the files that patterns match, sorted within each pattern.

    Args:
        patterns: Paths or addresses, globs (`data-?????-of-00010`), or `data@10` for ten shards.

    Raises:
        DataError: If a pattern matches nothing, or a shard of a set is missing.
    """
    files: list[File] = []
    for pattern in patterns:
        shards = re.fullmatch(r"(.*)@([0-9]{1,5})", pattern)
        wanted = f"{shards[1]}-?????-of-{int(shards[2]):05d}" if shards else pattern
        matches = _matching(wanted)
        if not matches:
            raise DataError(f"no file matches {shown(wanted)!r}")
        _check_shards(matches, wanted)
        files += matches
    if not files:
        raise DataError("no input_path: at least one file is expected")
    return files


def _matching(pattern: str) -> Sequence[File]:
    if is_remote(pattern):
        return [file for file in find_remote(pattern) if not file.name.endswith(".partial")]
    try:
        matches = sorted(Path(path) for path in glob.glob(pattern) if not path.endswith(".partial"))
    except (OSError, ValueError, re.error) as error:  # a null byte, a reversed range
        raise DataError(f"{shown(pattern)!r} is not a path: {error}") from None
    return matches or [path for path in [Path(pattern)] if is_file(path)]


def _check_shards(files: Sequence[File], pattern: str) -> None:
    if not _WILD_INDEX.search(pattern):  # one shard named by its number is a choice, not a gap
        return
    sets: dict[tuple[str, int, str], set[int]] = {}
    for file in files:
        match = _SHARD.fullmatch(str(file))
        if match:
            sets.setdefault((match[1], int(match[3]), match[4]), set()).add(int(match[2]))
    for (stem, count, tail), present in sets.items():
        missing = sorted(set(range(count)) - present)
        if missing:
            names = ", ".join(f"{Path(stem).name}-{shard:05d}-of-{count:05d}{tail}" for shard in missing[:5])
            raise DataError(f"{pattern}: {len(missing)} of {count} shards are missing: {names}")


def as_file(path: str | File) -> File:
    """Return a file by its path or address; DataError if there is none at an address."""
    if isinstance(path, RemoteFile):
        return path
    return remote_file(path) if isinstance(path, str) and is_remote(path) else Path(path)


def open_file(file: File) -> BinaryIO:
    """Open a file for reading; an OSError, or at an address a DataError, if it cannot be."""
    return file.open() if isinstance(file, RemoteFile) else open_regular(file)


def size_of(file: File, opened: BinaryIO) -> int:
    """Return the bytes of a file that is open."""
    return file.size if isinstance(file, RemoteFile) else os.fstat(opened.fileno()).st_size


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def identity(path: File, kind: str = "") -> str:
    """Return what a file is called in the cache: another name once it has changed; an OSError if there is none.

    Args:
        kind: What is made of it.
    """
    which = path.digest if isinstance(path, RemoteFile) else f"{path.resolve()} {_stamp(path)}"
    return hashlib.sha256(f"{which} {kind}".encode()).hexdigest()[:24]


def unpacked_copy(path: File, kind: str) -> Path:
    """Return the decompressed copy of a file in the cache; write it if needed.

    Of the processes that open a file at once, one decompresses it, and the others wait.
    """
    digest = identity(path, kind)
    target = cache_folder() / f"{path.name}.{digest}.record"
    if target.exists():
        return target
    try:
        make_folder(target.parent)
        with waiting_lock(target.with_name(f".{digest}.lock")):
            if not target.exists():
                with open_file(path) as source, open_whole(target) as plain:
                    _unpack_into(source, plain, path, kind)
    except OutputError as error:
        raise DataError(f"{path}: cannot be unpacked: {error}; set BOXWRIGHT_CACHE to another folder") from None
    return target


def _unpack_into(source: BinaryIO, plain: BinaryIO, path: File, kind: str) -> None:
    unpacker = zlib.decompressobj(wbits=WBITS[kind])
    try:
        while chunk := source.read(_CHUNK):
            while chunk:
                if unpacker.eof:  # one file may hold several streams
                    unpacker = zlib.decompressobj(wbits=WBITS[kind])
                # A chunk at a time is decompressed, as a few kilobytes may become gigabytes.
                plain.write(unpacker.decompress(chunk, _CHUNK))
                chunk = unpacker.unconsumed_tail or unpacker.unused_data
        if not unpacker.eof:
            plain.write(unpacker.flush())
    except zlib.error as error:
        at = source.tell()
        raise DataError(f"{path}: not readable as {kind.upper()} (record 0, before byte {at}): {error}") from None
    if not unpacker.eof:
        raise DataError(f"{path}: the {kind.upper()} stream is cut off at byte {source.tell()} (record unknown)")


def load_index(plain: File, path: File, mark: bytes, scan: Scan) -> NDArray[np.int64]:
    """Return where a file's samples begin, from its index file if that is intact and up to date; else it is scanned.

    Args:
        plain: What is read: the file, or its decompressed copy.
        path: The file, for messages.
        mark: What an index file of this kind begins with.
    """
    if isinstance(plain, RemoteFile):
        return _load_remote_index(plain, mark, scan)
    size, mtime = _stamp(plain)
    places = kept_places(plain, _INDEX)
    for place in places:
        starts = _stored_index(place, mark, size, mtime)
        if starts is not None:
            return starts
    with open_regular(plain) as file:
        starts = scan(file, path, size)
    _store_index(places, mark, (size, mtime), starts)
    return starts


def _load_remote_index(file: RemoteFile, mark: bytes, scan: Scan) -> NDArray[np.int64]:
    """Return the index of a file at an address: from the cache, else from an index file beside it, else by a scan."""
    place = cache_folder() / f"{file.digest}{_INDEX}"
    starts = _stored_index(place, mark, file.size, 0)
    if starts is not None:
        return starts
    with suppress(DataError):  # there is none
        # Its time is that of a copy; that it is of another file shows where a sample is read.
        beside = remote_file(file.beside(f".{file.name}{_INDEX}")).local_copy()
        starts = _stored_index(beside, mark, file.size, None)
    if starts is None:
        with file.open() as opened:
            starts = scan(opened, file, file.size)
    _store_index((place,), mark, (file.size, 0), starts)
    return starts


def _store_index(places: Sequence[Path], mark: bytes, stamp: tuple[int, int], starts: NDArray[np.int64]) -> None:
    numbers = np.concatenate([np.array(stamp, np.int64), starts])
    body = mark + numbers.astype("<i8").tobytes()
    for place in places:
        with suppress(OSError, OutputError):  # a read-only folder: use the cache, or scan again next time
            place.parent.mkdir(parents=True, exist_ok=True)
            write_whole(place, body + hashlib.sha256(body).digest())
            break


def _stored_index(place: Path, mark: bytes, size: int, mtime: int | None) -> NDArray[np.int64] | None:
    """Return what an index file says; None if it is missing, damaged, or outdated.

    Args:
        size: Bytes of the file that it is of.
        mtime: When that was written; None if it is not known.
    """
    try:
        content = read_bytes(place)
    except OSError:
        return None
    body, digest = content[:-_INDEX_DIGEST], content[-_INDEX_DIGEST:]
    if not body.startswith(mark) or hashlib.sha256(body).digest() != digest:
        return None
    if (len(body) - len(mark)) % 8 or len(body) < len(mark) + 16:
        return None
    numbers = np.frombuffer(body, "<i8", offset=len(mark)).astype(np.int64)
    return numbers[2:] if numbers[0] == size and mtime in (None, int(numbers[1])) else None
