"""TFRecord files without TensorFlow: random access with checksums, for files of any size.

A record is its length (uint64), a masked CRC32C of the length, the bytes, and a masked CRC32C of the bytes, all
little-endian.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from boxwright.base.crc import masked_crc
from boxwright.base.errors import DataError
from boxwright.base.files import open_regular, open_whole
from boxwright.base.limits import RECORD_BYTES
from boxwright.base.remote import RemoteFile
from boxwright.data.shard_files import WBITS, File, as_file, load_index, open_file, size_of, unpacked_copy

Compression = Literal["auto", "none", "gzip", "zlib"]

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_INDEX_MARK = b"boxwright record index 2\n"


class TFRecordFile:
    """One TFRecord file with random access to its records.

    It is reopened for each read, which costs little compared to decoding an image, so that it can be pickled and no
    file stays open.

    Attributes:
        path: A path, or a file at an address.
    """

    def __init__(self, path: str | File, compression: Compression = "auto") -> None:
        """Scan a file for its records, or load their index.

        Args:
            path: A path, an address, or a file at an address.

        Raises:
            DataError: If the file cannot be read, is not a TFRecord of that compression, or is cut off.
        """
        self.path = as_file(path)
        try:
            kind = _detect(self.path) if compression == "auto" else compression
            self._plain = self.path if kind == "none" else unpacked_copy(self.path, kind)
            self._offsets = load_index(self._plain, self.path, _INDEX_MARK, _scan)
        except OSError as error:
            raise DataError(f"{self.path}: {error.strerror or error}") from None

    @property
    def in_sequence(self) -> bool:
        """Whether records are read from an address, in blocks of many."""
        return isinstance(self._plain, RemoteFile)

    def where(self, index: int) -> str:
        """Return a record's place, for messages."""
        return f"{self.path}: record {index}"

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
            with open_file(self._plain) as file:
                file.seek(offset)
                data, footer = _read_record(file, at, size_of(self._plain, file))
        except OSError as error:
            raise DataError(f"{at}: {error.strerror or error}") from None
        if len(footer) < _FOOTER.size or _FOOTER.unpack(footer)[0] != masked_crc(data):
            raise DataError(f"{at}: checksum of its {len(data)} bytes does not match; the file is damaged")
        return data


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


def _detect(path: File) -> Literal["none", "gzip", "zlib"]:
    with open_file(path) as file:
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


def _scan(file: BinaryIO, path: File, size: int) -> NDArray[np.int64]:
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
    packer = None if compression == "none" else zlib.compressobj(wbits=WBITS[compression])
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
