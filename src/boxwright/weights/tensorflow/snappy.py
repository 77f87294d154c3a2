"""Snappy's block format, in which TensorFlow compresses the index of a checkpoint.

A length, then elements: literal bytes, or references to earlier output. (google/snappy, format_description.txt.)
"""

from __future__ import annotations

from boxwright.base.limits import INDEX_BYTES
from boxwright.base.varint import read_varint

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
