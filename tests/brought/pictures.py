"""Made-up pictures in which the color of an object is its class, stored in any EXIF orientation.

A label that is read onto another place, another picture or another class then meets another color.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

COLORS = {"red": (205, 25, 25), "green": (20, 165, 35), "blue": (35, 40, 235)}
CLASSES = tuple(COLORS)
Box = tuple[float, float, float, float]
Convention = Literal["upright", "stored"]
_WIDE = (72, 96)  # height and width of the upright picture
_ORIENTATION = 0x0112
_FORMATS = {
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".jfif": "JPEG",
    ".jpe": "JPEG",
    ".mpo": "MPO",
    ".png": "PNG",
    ".gif": "GIF",
    ".avif": "AVIF",
    ".ppm": "PPM",
    ".bmp": "BMP",
    ".webp": "WEBP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
}


@dataclass(frozen=True)
class Object:
    """A rectangle of one color.

    Attributes:
        box: x_min, y_min, x_max, y_max in pixels.
    """

    name: str
    box: Box


@dataclass(frozen=True)
class Picture:
    """A picture's file and its truth.

    Attributes:
        width: Of the picture that the boxes refer to, as `height`: the upright or the stored one.
    """

    name: str
    data: bytes
    width: int
    height: int
    objects: tuple[Object, ...]

    @property
    def stem(self) -> str:
        return PurePath(self.name).stem


def pictures(
    count: int = 5,
    *,
    suffix: str = ".png",
    orientation: int = 1,
    convention: Convention = "upright",
    size: tuple[int, int] = _WIDE,
    alike: bool = False,
    seed: int = 0,
) -> list[Picture]:
    """Return pictures with two objects each, named p0, p1, ….

    Args:
        suffix: Of the files, which decides their format, in any case.
        orientation: The EXIF orientation that the files are stored in; 1 writes none.
        convention: Whether boxes and sizes refer to the upright picture or to the stored one.
        size: (height, width) of the upright picture.
        alike: Whether both objects of a picture are of one class.
    """
    return [_picture(number, suffix, orientation, convention, size, (seed, alike)) for number in range(count)]


def named(picture: Picture, name: str) -> Picture:
    """Return the same picture under another name."""
    return replace(picture, name=name)


def renamed(given: Sequence[Picture], pattern: str) -> list[Picture]:
    """Return pictures with names by a pattern, as `photo {number}.png`."""
    return [named(picture, pattern.format(number=number)) for number, picture in enumerate(given)]


@cache
def _picture(
    number: int, suffix: str, orientation: int, convention: Convention, size: tuple[int, int], seed: tuple[int, bool]
) -> Picture:
    pixels, objects = _drawn(number, size, seed)
    data = encoded(_stored(pixels, orientation), suffix, orientation)
    height, width = size
    if convention == "stored":
        objects = tuple(Object(one.name, _stored_box(one.box, orientation, size)) for one in objects)
        height, width = (width, height) if orientation >= 5 else (height, width)
    return Picture(f"p{number}{suffix}", data, width, height, objects)


def _drawn(number: int, size: tuple[int, int], seed: tuple[int, bool]) -> tuple[NDArray[np.uint8], tuple[Object, ...]]:
    """Draw two rectangles of two classes in two of the picture's quarters, on gray."""
    random, alike = np.random.default_rng([seed[0], number]), seed[1]
    height, width = size
    pixels = np.repeat(random.integers(95, 125, (height, width, 1)).astype(np.uint8), 3, axis=2)
    objects = []
    for place, quarter in enumerate(random.permutation(4)[:2].tolist()):
        name = CLASSES[(number + (0 if alike else place)) % len(CLASSES)]
        left, top = (quarter % 2) * (width // 2) + 5, (quarter // 2) * (height // 2) + 5
        across, down = width // 2 - 10, height // 2 - 10
        # No two sides are alike, so that a turned box shows.
        x1, y1 = left + int(random.integers(0, across // 4)), top + int(random.integers(0, down // 4))
        x2, y2 = (
            x1 + int(random.integers(across // 2, across * 3 // 4)),
            y1 + int(random.integers(down // 2, down * 3 // 4)),
        )
        pixels[y1:y2, x1:x2] = COLORS[name]
        objects.append(Object(name, (x1, y1, x2, y2)))
    return pixels, tuple(objects)


def _stored(upright: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return the pixels that an EXIF orientation turns into the upright ones."""
    turned: dict[int, Any] = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }
    return np.ascontiguousarray(turned[orientation])


def _stored_box(box: Box, orientation: int, size: tuple[int, int]) -> Box:
    height, width = size

    def place(x: float, y: float) -> tuple[float, float]:
        return {
            1: (x, y),
            2: (width - x, y),
            3: (width - x, height - y),
            4: (x, height - y),
            5: (y, x),
            6: (y, width - x),
            7: (height - y, width - x),
            8: (height - y, x),
        }[orientation]

    (xa, ya), (xb, yb) = place(box[0], box[1]), place(box[2], box[3])
    return min(xa, xb), min(ya, yb), max(xa, xb), max(ya, yb)


def encoded(pixels: NDArray[np.uint8], suffix: str, orientation: int = 1) -> bytes:
    """Return the bytes of a file of pixels, uint8 [H, W, 3], in the format of a suffix of any case."""
    kind, buffer = _FORMATS[suffix.lower()], io.BytesIO()
    options: dict[str, Any] = {}
    if kind in ("JPEG", "MPO"):
        options = {"quality": 95, "subsampling": 0}
    elif kind in ("WEBP", "AVIF"):
        options = {"quality": 100}
    if orientation != 1:
        exif = Image.Exif()
        exif[_ORIENTATION] = orientation
        options["exif"] = exif
    Image.fromarray(pixels).save(buffer, format=kind, **options)
    return buffer.getvalue()
