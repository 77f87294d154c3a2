"""Variable-length integers of seven bits per byte, as in protobuf, LevelDB's tables and Snappy."""

from __future__ import annotations


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the integer at a position, and where it ends.

    Raises:
        ValueError: If the bytes end within the integer, or it exceeds 64 bits.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("the data end within a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number is longer than 64 bits")


def write_varint(value: int) -> bytes:
    """Return the bytes of an integer."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
