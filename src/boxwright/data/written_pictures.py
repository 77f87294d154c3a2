"""Image files as a converted data set needs them, so that boxes stay on their objects.

A sample's boxes refer to its image as it was read: upright, or with pixels as stored. The formats' readers turn
pictures upright by EXIF, and TensorFlow never does. The file's bytes are kept wherever they give that image again.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.image_io import decode_image, encode_png, encode_whole_jpeg, header_of
from boxwright.data.picture_files import picture_format

_ORIENTATION, _SHORT = 0x0112, 3
_ENTRY = 12
# What is before EXIF's data in the files of each format.
_BEFORE = {"JPEG": b"Exif\0\0", "PNG": b"eXIf", "WEBP": b"EXIF"}
_JPEG_NAMES = frozenset({".jpg", ".jpeg", ".jpe", ".jfif"})


def upright_file(image: NDArray[Any], data: bytes, name: str) -> tuple[bytes, str]:
    """Return a file that gives an image to readers that turn pictures upright, and its name.

    Args:
        image: A sample's, uint8 [H, W, 3].
        data: The file that it was read from.
        name: Of that file.
    """
    if header_of(data, name).orientation == 1 or _gives(image, data, name, upright=True):
        return data, name
    plain = without_orientation(data)
    if plain is not None and _gives(image, plain, name, upright=True):
        return plain, name
    return _encoded(image, data, name)


def stored_file(image: NDArray[Any], data: bytes, name: str) -> bytes:
    """Return a file whose pixels are an image as they are stored, for readers that ignore EXIF.

    Args:
        image: A sample's, uint8 [H, W, 3].
        data: The file that it was read from.
        name: Of that file.
    """
    if header_of(data, name).orientation == 1 or _gives(image, data, name, upright=False):
        return data
    return _encoded(image, data, name)[0]


def _gives(image: NDArray[Any], data: bytes, name: str, *, upright: bool) -> bool:
    try:
        return np.array_equal(decode_image(data, name, upright=upright), image)
    except DataError:
        return False


def _encoded(image: NDArray[Any], data: bytes, name: str) -> tuple[bytes, str]:
    if picture_format(data[:32]) == "JPEG":
        suffix = Path(name).suffix
        return encode_whole_jpeg(image), name if suffix.lower() in _JPEG_NAMES else f"{name}.jpg"
    return encode_png(image), name if name.lower().endswith(".png") else f"{name.removesuffix(Path(name).suffix)}.png"


def without_orientation(data: bytes) -> bytes | None:
    """Return an image file whose EXIF orientation says that pixels are upright as stored; None if it is not found."""
    kind = picture_format(data[:32])
    if kind == "TIFF":
        start = 0
    elif kind in _BEFORE and (place := data.find(_BEFORE[kind])) >= 0:
        # WebP's chunk has its length before the data, and some programs write JPEG's mark in other formats, too.
        start = place + len(_BEFORE[kind]) + (4 if kind == "WEBP" else 0)
        start += 6 if kind != "JPEG" and data[start : start + 6] == _BEFORE["JPEG"] else 0
    else:
        return None
    value = _place_of_orientation(data, start)
    if value is None:
        return None
    order = "<" if data[start : start + 2] == b"II" else ">"
    changed = bytearray(data)
    struct.pack_into(f"{order}H", changed, value, 1)
    if kind == "PNG":
        _sign_chunk(changed, data.find(_BEFORE["PNG"]))
    return bytes(changed)


def _place_of_orientation(data: bytes, start: int) -> int | None:
    """Return where the orientation's value is in TIFF's table that starts somewhere; None if it has none."""
    order = {b"II": "<", b"MM": ">"}.get(data[start : start + 2])
    if order is None:
        return None
    try:
        table = start + struct.unpack_from(f"{order}I", data, start + 4)[0]
        (count,) = struct.unpack_from(f"{order}H", data, table)
        for place in range(table + 2, table + 2 + count * _ENTRY, _ENTRY):
            if struct.unpack_from(f"{order}HH", data, place) == (_ORIENTATION, _SHORT):
                return place + 8 if place + _ENTRY <= len(data) else None
    except struct.error:  # the table leads out of the file
        return None
    return None


def _sign_chunk(png: bytearray, name: int) -> None:
    """Update the checksum of a PNG's chunk, whose name is at a place."""
    (length,) = struct.unpack_from(">I", png, name - 4)
    if name + 4 + length + 4 <= len(png):
        struct.pack_into(">I", png, name + 4 + length, zlib.crc32(png[name : name + 4 + length]))
