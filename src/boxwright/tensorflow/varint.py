"""Numbers of seven bits a byte, as protobuf, LevelDB's tables and Snappy write lengths."""

from __future__ import annotations


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, lowest first.

    Returns:
        The number, and where it ends.

    Raises:
        ValueError: Where the bytes end within the number, or it is over 64 bits.
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
    """Return its bytes."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
