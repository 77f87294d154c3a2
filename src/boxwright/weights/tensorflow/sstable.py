"""TensorFlow's sorted string tables: a checkpoint's `.index` file, or a whole checkpoint of the first format.

A table is blocks of sorted (key, value) pairs, each followed by a compression byte and a masked CRC, then an index
block with each block's position, then a footer. Keys share prefixes with the previous key of their block. (The format
is LevelDB's, with TensorFlow's checksums.)

TensorFlow compresses the index of a checkpoint in Snappy's block format: a length, then elements, which are literal
bytes or references to earlier output. (google/snappy, format_description.txt.)
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from boxwright.base.crc import masked_crc
from boxwright.base.errors import CheckpointError
from boxwright.base.files import diagnose_wrong_file, open_regular
from boxwright.base.limits import INDEX_BYTES, Limit
from boxwright.base.varint import read_varint, write_varint

_LITERAL, _COPY_1 = 0, 1
# The tag of a literal encodes its length up to this one, and else the number of bytes of the length.
_SHORT_LITERAL = 60


def decompress(data: bytes) -> bytes:
    """Return the decompressed bytes of a block.

    Raises:
        ValueError: If the block is cut off, refers to bytes before its start, or has another length than it states.
    """
    size, position = read_varint(data, 0)
    if problem := INDEX_BYTES.exceeded(size):
        raise ValueError(problem)
    out = bytearray()
    while position < len(data):
        tag = data[position]
        position += 1
        if tag & 3 == _LITERAL:
            length, position = _literal_length(data, tag >> 2, position)
            if position + length > len(data):
                raise ValueError("a compressed block is cut off")
            out += data[position : position + length]
            position += length
        else:
            length, offset, position = _copy(data, tag, position)
            if not 0 < offset <= len(out):
                raise ValueError("a compressed block refers to bytes before its start")
            # The source may overlap the output: then it repeats.
            pattern = bytes(out[-offset:][:length])
            out += (pattern * (length // len(pattern) + 1))[:length]
        if len(out) > size:
            raise ValueError(f"a compressed block holds more than the {size} bytes that it states")
    if len(out) != size:
        raise ValueError(f"a compressed block holds {len(out)} bytes but states {size}")
    return bytes(out)


def _literal_length(data: bytes, code: int, position: int) -> tuple[int, int]:
    """Return the length of a literal, and where its bytes start."""
    if code < _SHORT_LITERAL:
        return code + 1, position
    end = position + code - _SHORT_LITERAL + 1
    return _little_endian(data, position, end) + 1, end


def _copy(data: bytes, tag: int, position: int) -> tuple[int, int, int]:
    """Return the length of a reference, its distance, and where the next element starts."""
    if tag & 3 == _COPY_1:
        return (tag >> 2 & 7) + 4, (tag >> 5) << 8 | _little_endian(data, position, position + 1), position + 1
    end = position + 2 * (tag & 3) - 2
    return (tag >> 2) + 1, _little_endian(data, position, end), end


def _little_endian(data: bytes, start: int, end: int) -> int:
    if end > len(data):
        raise ValueError("a compressed block is cut off")
    return int.from_bytes(data[start:end], "little")


_MAGIC = 0xDB4775248B80FB57
_FOOTER_SIZE = 48
_TRAILER_SIZE = 5
_UNCOMPRESSED, _SNAPPY = 0, 1
# LevelDB's defaults for writing; readers accept any.
_BLOCK_SIZE = 4096
_RESTART_EVERY = 16


def is_table(path: str | Path) -> bool:
    """Return whether a file ends like a table."""
    try:
        with open_regular(path) as file:
            file.seek(-8, os.SEEK_END)
            return file.read(8) == struct.pack("<Q", _MAGIC)
    except (OSError, ValueError):
        return False


def read_table(data: bytes, where: str, most: Limit = INDEX_BYTES) -> dict[bytes, bytes]:
    """Return a whole table, key to value, in order.

    Args:
        most: The limit of the total size of keys and values.

    Raises:
        CheckpointError: If the bytes are not a table, or are damaged; with the position.
    """
    if instead := diagnose_wrong_file(data):
        raise CheckpointError(f"{where}: {instead}")
    if len(data) < _FOOTER_SIZE or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise CheckpointError(
            f"{where}: not the index of a TensorFlow checkpoint, or cut off: its last 8 bytes are not the format's mark"
        )
    try:
        footer = data[-_FOOTER_SIZE:]
        _, position = _read_handle(footer, 0)
        index, _ = _read_handle(footer, position)
        table: dict[bytes, bytes] = {}
        size, read = 0, 0
        for _, handle in _entries(_block(data, index, where)):
            (offset, length), _ = _read_handle(handle, 0)
            # A crafted index could name one block many times, and multiply its size.
            if offset < read:
                raise ValueError(f"the block at byte {offset} overlaps the one before")
            read = offset + length
            for key, value in _entries(_block(data, (offset, length), where)):
                size += len(key) + len(value)
                if problem := most.exceeded(size):
                    raise ValueError(problem)
                table[key] = value
    except (ValueError, struct.error, IndexError) as error:
        raise CheckpointError(f"{where}: the table is damaged: {error}") from None
    return table


def _read_handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    offset, position = read_varint(data, position)
    size, position = read_varint(data, position)
    return (offset, size), position


def _block(data: bytes, handle: tuple[int, int], where: str) -> bytes:
    offset, size = handle
    end = offset + size
    if end + _TRAILER_SIZE > len(data):
        raise CheckpointError(f"{where}: cut off: a block ends at byte {end}, the file at {len(data)}")
    kind = data[end]
    if struct.unpack("<I", data[end + 1 : end + _TRAILER_SIZE])[0] != masked_crc(data[offset : end + 1]):
        raise CheckpointError(f"{where}: damaged: the checksum of the block at byte {offset} does not hold")
    if kind not in (_UNCOMPRESSED, _SNAPPY):
        raise CheckpointError(f"{where}: the block at byte {offset} is compressed in an unknown way ({kind})")
    block = data[offset:end]
    return decompress(block) if kind == _SNAPPY else block


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(block) < 4:
        raise ValueError("a block is shorter than its end")
    (restarts,) = struct.unpack("<I", block[-4:])
    # Restart points serve binary search; a table is read as a whole here.
    end = len(block) - 4 * (restarts + 1)
    position, key = 0, b""
    while position < end:
        shared, position = read_varint(block, position)
        fresh, position = read_varint(block, position)
        length, position = read_varint(block, position)
        if shared > len(key) or position + fresh + length > end:
            raise ValueError("an entry is longer than its block")
        key = key[:shared] + block[position : position + fresh]
        position += fresh
        yield key, block[position : position + length]
        position += length


def write_table(items: Mapping[bytes, bytes]) -> bytes:
    """Return the bytes of a table; the items may be in any order."""
    out = bytearray()
    index: list[tuple[bytes, bytes]] = []
    pending: list[tuple[bytes, bytes]] = []

    def flush() -> None:
        if pending:
            index.append((pending[-1][0], _append_block(out, pending)))
            pending.clear()

    for key in sorted(items):
        pending.append((key, items[key]))
        if sum(len(k) + len(v) for k, v in pending) > _BLOCK_SIZE:
            flush()
    flush()
    # The footer must name a block of metadata, even an empty one.
    meta = _append_block(out, [])
    handles = meta + _append_block(out, index)
    return bytes(out) + handles.ljust(_FOOTER_SIZE - 8, b"\0") + struct.pack("<Q", _MAGIC)


def _append_block(out: bytearray, items: list[tuple[bytes, bytes]]) -> bytes:
    """Append a block to the file; return its handle."""
    block, restarts, before = bytearray(), [0], b""
    for number, (key, value) in enumerate(items):
        shared = 0
        if number % _RESTART_EVERY == 0:
            if number:
                restarts.append(len(block))
        else:
            while shared < min(len(before), len(key)) and before[shared] == key[shared]:
                shared += 1
        block += (
            write_varint(shared) + write_varint(len(key) - shared) + write_varint(len(value)) + key[shared:] + value
        )
        before = key
    block += b"".join(struct.pack("<I", restart) for restart in restarts) + struct.pack("<I", len(restarts))
    handle = write_varint(len(out)) + write_varint(len(block))
    block.append(0)
    out += block + struct.pack("<I", masked_crc(bytes(block)))
    return handle
