"""TFRecord files without TensorFlow: random access with checksums, for files of any size.

A record is its length (uint64), a masked CRC32C of the length, the bytes, and a masked CRC32C of the bytes, all
little-endian. A file is scanned once for the offsets of its records, which are stored in an index file beside it, or in
a cache folder if that is not writable. A compressed file is decompressed once into the cache folder. Of a file at an
address, blocks are fetched as they are read; an index file beside it saves the scan, which reads all of it.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from boxwright.base.crc import masked_crc
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
from boxwright.base.limits import RECORD_BYTES
from boxwright.base.remote import RemoteFile, find_remote, is_remote, remote_file

Compression = Literal["auto", "none", "gzip", "zlib"]

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(.*)")
_WILD_INDEX = re.compile(r"-[?*\[][^/]*$")
# zlib's window sizes: 15 bits for both; 16 more ask for gzip's header.
_WBITS = {"gzip": 31, "zlib": 15}
_CHUNK = 1 << 20
_INDEX = ".index"
# An index file: this mark; the records' size, time and offsets as int64; a SHA-256 of all before it.
_INDEX_MARK = b"boxwright record index 2\n"
_INDEX_DIGEST = 32


def expand_paths(patterns: Sequence[str]) -> list[Path | RemoteFile]:
    """Return the files that patterns match, sorted within each pattern.

    Args:
        patterns: Paths or addresses, globs (`data-?????-of-00010`), or `data@10` for ten shards.

    Raises:
        DataError: If a pattern matches nothing, or a shard of a set is missing.
    """
    files: list[Path | RemoteFile] = []
    for pattern in patterns:
        shards = re.fullmatch(r"(.*)@([0-9]{1,5})", pattern)
        wanted = f"{shards[1]}-?????-of-{int(shards[2]):05d}" if shards else pattern
        matches = _matching(wanted)
        if not matches:
            raise DataError(f"no file matches {shown(wanted)!r}")
        _check_shards(matches, wanted)
        files += matches
    if not files:
        raise DataError("no input_path: at least one TFRecord file is expected")
    return files


def _matching(pattern: str) -> Sequence[Path | RemoteFile]:
    if is_remote(pattern):
        return [file for file in find_remote(pattern) if not file.name.endswith(".partial")]
    try:
        matches = sorted(Path(path) for path in glob.glob(pattern) if not path.endswith(".partial"))
    except (OSError, ValueError, re.error) as error:  # a null byte, a reversed range
        raise DataError(f"{shown(pattern)!r} is not a path: {error}") from None
    return matches or [path for path in [Path(pattern)] if is_file(path)]


def _check_shards(files: Sequence[Path | RemoteFile], pattern: str) -> None:
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


class TFRecordFile:
    """One TFRecord file with random access to its records.

    It is reopened for each read, which costs little compared to decoding an image, so that it can be pickled and no
    file stays open.

    Attributes:
        path: A path, or a file at an address.
    """

    def __init__(self, path: str | Path | RemoteFile, compression: Compression = "auto") -> None:
        """Scan a file for its records, or load their index.

        Args:
            path: A path, an address, or a file at an address.

        Raises:
            DataError: If the file cannot be read, is not a TFRecord of that compression, or is cut off.
        """
        self.path = _as_file(path)
        try:
            kind = _detect(self.path) if compression == "auto" else compression
            self._plain = self.path if kind == "none" else _unpack(self.path, kind)
            self._offsets = _load_index(self._plain, self.path)
        except OSError as error:
            raise DataError(f"{self.path}: {error.strerror or error}") from None

    @property
    def is_remote(self) -> bool:
        """Whether records are read from an address, in blocks of many."""
        return isinstance(self._plain, RemoteFile)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> bytes:
        """Return one record's bytes.

        Raises:
            DataError: If its checksum does not match.
        """
        if not 0 <= index < len(self):
            raise IndexError(index)
        offset = int(self._offsets[index])
        at = f"{self.path}: record {index} at byte {offset}"
        try:
            with _open(self._plain) as file:
                file.seek(offset)
                data, footer = _read_record(file, at, _size(self._plain, file))
        except OSError as error:
            raise DataError(f"{at}: {error.strerror or error}") from None
        if len(footer) < _FOOTER.size or _FOOTER.unpack(footer)[0] != masked_crc(data):
            raise DataError(f"{at}: checksum of its {len(data)} bytes does not match; the file is damaged")
        return data


def _as_file(path: str | Path | RemoteFile) -> Path | RemoteFile:
    if isinstance(path, RemoteFile):
        return path
    return remote_file(path) if isinstance(path, str) and is_remote(path) else Path(path)


def _open(file: Path | RemoteFile) -> BinaryIO:
    return file.open() if isinstance(file, RemoteFile) else open_regular(file)


def _size(file: Path | RemoteFile, opened: BinaryIO) -> int:
    return file.size if isinstance(file, RemoteFile) else os.fstat(opened.fileno()).st_size


def _read_record(file: BinaryIO, at: str, size: int) -> tuple[bytes, bytes]:
    """Return a record and its checksum; the length is checked before memory is allocated."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise DataError(f"{at}: the file has become shorter while in use")
    length, crc = _HEADER.unpack(header)
    if crc != masked_crc(header[:8]):
        raise DataError(f"{at}: no record begins here: the file has changed while in use, or is damaged")
    if problem := RECORD_BYTES.exceeded(length):
        raise DataError(f"{at}: {problem}")
    if file.tell() + length + _FOOTER.size > size:
        raise DataError(f"{at}: the file has become shorter while in use")
    return file.read(length), file.read(_FOOTER.size)


def _detect(path: Path | RemoteFile) -> Literal["none", "gzip", "zlib"]:
    with _open(path) as file:
        head = file.read(_HEADER.size)
    if not head:
        return "none"
    # First, since a record's length may begin with the bytes that mark gzip or zlib; its checksum decides.
    if len(head) == _HEADER.size and _HEADER.unpack(head)[1] == masked_crc(head[:8]):
        return "none"
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    # zlib's two header bytes are a multiple of 31 (RFC 1950, section 2.2).
    if head[0] == 0x78 and len(head) > 1 and (head[0] * 256 + head[1]) % 31 == 0:
        return "zlib"
    return "none"


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _unpack(path: Path | RemoteFile, kind: str) -> Path:
    """Return the decompressed copy of a file in the cache; write it if needed.

    Of the processes that open a file at once, one decompresses it, and the others wait.
    """
    which = path.digest if isinstance(path, RemoteFile) else f"{path.resolve()} {_stamp(path)}"
    digest = hashlib.sha256(f"{which} {kind}".encode()).hexdigest()[:24]
    target = cache_folder() / f"{path.name}.{digest}.record"
    if target.exists():
        return target
    try:
        make_folder(target.parent)
        with waiting_lock(target.with_name(f".{digest}.lock")):
            if not target.exists():
                with _open(path) as source, open_whole(target) as plain:
                    _unpack_into(source, plain, path, kind)
    except OutputError as error:
        raise DataError(f"{path}: cannot be unpacked: {error}; set BOXWRIGHT_CACHE to another folder") from None
    return target


def _unpack_into(source: BinaryIO, plain: BinaryIO, path: Path | RemoteFile, kind: str) -> None:
    unpacker = zlib.decompressobj(wbits=_WBITS[kind])
    try:
        while chunk := source.read(_CHUNK):
            while chunk:
                if unpacker.eof:  # one file may hold several streams
                    unpacker = zlib.decompressobj(wbits=_WBITS[kind])
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


def _load_index(plain: Path | RemoteFile, path: Path | RemoteFile) -> NDArray[np.int64]:
    """Return the records' offsets, from the index file if it is intact and up to date."""
    if isinstance(plain, RemoteFile):
        return _load_remote_index(plain)
    size, mtime = _stamp(plain)
    places = kept_places(plain, _INDEX)
    for place in places:
        offsets = _stored_index(place, size, mtime)
        if offsets is not None:
            return offsets
    with open_regular(plain) as file:
        offsets = _scan(file, path, size)
    _store_index(places, size, mtime, offsets)
    return offsets


def _load_remote_index(file: RemoteFile) -> NDArray[np.int64]:
    """Return the offsets of a file at an address: from the cache, else from an index file beside it, else by a scan."""
    place = cache_folder() / f"{file.digest}{_INDEX}"
    offsets = _stored_index(place, file.size, 0)
    if offsets is not None:
        return offsets
    with suppress(DataError):  # there is none
        # Its time is that of a copy; a record of another file than it was made of has a checksum that does not match.
        offsets = _stored_index(remote_file(file.beside(f".{file.name}{_INDEX}")).local_copy(), file.size, None)
    if offsets is None:
        with file.open() as opened:
            offsets = _scan(opened, file, file.size)
    _store_index((place,), file.size, 0, offsets)
    return offsets


def _store_index(places: Sequence[Path], size: int, mtime: int, offsets: NDArray[np.int64]) -> None:
    numbers = np.concatenate([np.array([size, mtime], np.int64), offsets])
    body = _INDEX_MARK + numbers.astype("<i8").tobytes()
    for place in places:
        with suppress(OSError, OutputError):  # a read-only folder: use the cache, or scan again next time
            place.parent.mkdir(parents=True, exist_ok=True)
            write_whole(place, body + hashlib.sha256(body).digest())
            break


def _stored_index(place: Path, size: int, mtime: int | None) -> NDArray[np.int64] | None:
    """Return the offsets in an index file; None if it is missing, damaged, or outdated.

    Args:
        size: Bytes of the file of records.
        mtime: When it was written; None if it is not known.
    """
    try:
        content = read_bytes(place)
    except OSError:
        return None
    body, digest = content[:-_INDEX_DIGEST], content[-_INDEX_DIGEST:]
    if not body.startswith(_INDEX_MARK) or hashlib.sha256(body).digest() != digest:
        return None
    if (len(body) - len(_INDEX_MARK)) % 8 or len(body) < len(_INDEX_MARK) + 16:
        return None
    numbers = np.frombuffer(body, "<i8", offset=len(_INDEX_MARK)).astype(np.int64)
    return numbers[2:] if numbers[0] == size and mtime in (None, int(numbers[1])) else None


def _scan(file: BinaryIO, path: Path | RemoteFile, size: int) -> NDArray[np.int64]:
    offsets = array("q")  # a list of Python's numbers takes five times the memory
    offset = 0
    while offset < size:
        at = f"{path}: record {len(offsets)} at byte {offset}"
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise DataError(f"{at}: the file ends after {len(header)} of {_HEADER.size} header bytes; it is cut off")
        length, crc = _HEADER.unpack(header)
        if crc != masked_crc(header[:8]):
            hint = "; is it a TFRecord, and not packed in another way?" if not offsets else "; the file is damaged"
            raise DataError(f"{at}: checksum of the record's length does not match{hint}")
        end = offset + _HEADER.size + length + _FOOTER.size
        if end > size:
            raise DataError(f"{at}: {length} bytes are announced, but the file ends {end - size} short; it is cut off")
        offsets.append(offset)
        offset = end
        # Bodies are skipped here; the checksum of each is compared when it is read.
        file.seek(offset)
    return np.frombuffer(offsets, np.int64) if offsets else np.zeros(0, np.int64)


def write_records(
    path: str | Path, records: Iterable[bytes], compression: Literal["none", "gzip", "zlib"] = "none"
) -> int:
    """Write records to a file; return their number."""
    with open_whole(path) as file:
        return write_records_to(file, records, compression)


def write_records_to(
    file: BinaryIO, records: Iterable[bytes], compression: Literal["none", "gzip", "zlib"] = "none"
) -> int:
    """Write records to an open file; return their number."""
    packer = None if compression == "none" else zlib.compressobj(wbits=_WBITS[compression])
    count = 0
    for record in records:
        header = struct.pack("<Q", len(record))
        data = b"".join([header, _FOOTER.pack(masked_crc(header)), record, _FOOTER.pack(masked_crc(record))])
        file.write(packer.compress(data) if packer else data)
        count += 1
    if packer:
        file.write(packer.flush())
    return count


def read_new_records(path: Path, start: int) -> Iterator[tuple[bytes, int]]:
    """Yield the complete records from a byte of a growing file on, each with the byte that follows it.

    It ends at a record that is still being written, and at one whose length is damaged, which is read again next time.
    """
    with open_regular(path) as file:
        file.seek(start)
        while len(head := file.read(_HEADER.size)) == _HEADER.size:
            length, checksum = _HEADER.unpack(head)
            if checksum != masked_crc(head[:8]) or length > RECORD_BYTES.value:
                return
            body = file.read(length + _FOOTER.size)
            if len(body) < length + _FOOTER.size:
                return
            start += len(head) + len(body)
            yield body[:length], start
