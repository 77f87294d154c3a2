"""Checks of PNG files: each is refused where a checksum does not match or a row is missing.

Pillow checks neither for pixels: missing rows decode as black, and flipped bits as other pixels. (PNG specification,
sections 5, 7 and 8.)
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from typing import IO

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# Adam7: first column and row of each pass, and the steps between.
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_STEP = 1 << 20


def check_png(data: bytes) -> None:
    """Raise a `ValueError` if a PNG is damaged or rows are missing."""
    missing = -1
    unpacker = zlib.decompressobj()
    for kind, body in _chunks(data):
        if kind == b"IHDR":
            missing = _raw_size(body)
        elif kind == b"IDAT":
            missing -= _unpacked(unpacker, body, missing)
    if missing > 0:
        raise ValueError(f"it is cut off: {missing} bytes of its rows are missing")


def has_exif_after_pixels(file: IO[bytes]) -> bool:
    """Return whether a PNG has an eXIf chunk after its pixels; the file's position stays."""
    start = file.tell()
    try:
        file.seek(len(PNG_SIGNATURE))
        after_pixels = False
        while len(head := file.read(8)) == 8:
            after_pixels = after_pixels or head[4:] == b"IDAT"
            if head[4:] == b"IEND" or (after_pixels and head[4:] == b"eXIf"):
                return head[4:] == b"eXIf"
            # This skips the chunk's data and its checksum.
            file.seek(struct.unpack(">I", head[:4])[0] + 4, io.SEEK_CUR)
        return False
    finally:
        file.seek(start)


def _chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the chunks that pixels depend on, up to the last IDAT, with verified checksums."""
    position, begun, view = len(PNG_SIGNATURE), False, memoryview(data)
    # A chunk has at least 12 bytes: length, type and checksum, of 4 each.
    while position + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, position)
        kind, end = data[position + 4 : position + 8], position + 8 + length
        if kind != b"IDAT" and begun:
            return
        if kind in (b"IHDR", b"PLTE", b"tRNS", b"IDAT"):
            if end + 4 > len(data):
                raise ValueError(f"it is cut off inside its {kind.decode()} chunk")
            if struct.unpack_from(">I", data, end)[0] != zlib.crc32(view[position + 4 : end]):
                raise ValueError(
                    f"it is damaged: the checksum of its {kind.decode()} chunk at byte {position} is wrong"
                )
            begun = kind == b"IDAT"
            yield kind, view[position + 8 : end]
        position = end + 4


def _raw_size(header: memoryview) -> int:
    """Return the size of the unpacked rows in bytes, each with its filter byte."""
    width, height, depth, color, _, _, interlace = struct.unpack(">IIBBBBB", header)
    if color not in _CHANNELS:
        raise ValueError(f"it is damaged: color type {color}")
    bits = depth * _CHANNELS[color]
    sizes = [(width, height)]
    if interlace:
        sizes = [(-(-(width - x) // dx), -(-(height - y) // dy)) for x, y, dx, dy in _PASSES]
    return sum(h * (1 + -(-w * bits // 8)) for w, h in sizes if w > 0 and h > 0)


def _unpacked(unpacker: zlib._Decompress, body: memoryview, wanted: int) -> int:
    """Decompress a piece of the rows in steps that bound memory; return the number of bytes."""
    count, rest = 0, bytes(body)
    try:
        # More rows than the header announces are not decompressed: they may be gigabytes.
        while rest and not unpacker.eof and count <= wanted:
            count += len(unpacker.decompress(rest, _STEP))
            rest = unpacker.unconsumed_tail
    except zlib.error as error:
        raise ValueError(f"it is damaged: {error}") from None
    return count
