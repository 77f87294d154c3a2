"""Pictures in each form that clients send; the sizes of all in a request are checked before any is decoded.

Forms (multipart/form-data, RFC 7578) are split in one pass: no nested parts, and few parts and headers. Numbers in
nested lists are validated before an array is made, so that memory is proportional to the input.

Dimensions: H W picture.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.image_io import decode_image, image_size
from boxwright.inference.serving.requests import BadRequest
from boxwright.inference.serving.settings import ServerSettings

Picture = NDArray[np.uint8]
# A boundary has at most 70 characters (RFC 2046, section 5.1.1).
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s";,]{1,70}))\s*(?:;|$)', re.IGNORECASE)
_FILENAME = re.compile(rb";\s*filename\*?=", re.IGNORECASE)
_MOST_PARTS, _MOST_HEADER_BYTES = 100, 8192
_UNENCODED = (b"", b"binary", b"8bit", b"7bit")
_END = b"--"


def file_of_form(body: bytes, content_type: str) -> bytes:
    """Return the only file in a form.

    Raises:
        BadRequest: If it is not a form, or does not have exactly one file.
    """
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise BadRequest(400, "the form cannot be read: its Content-Type has no boundary")
    files = _files(body, (boundary[1] or boundary[2]).encode("latin-1", "replace"))
    if len(files) != 1:
        raise BadRequest(400, f"expected a form with one file, found {len(files)}")
    return files[0]


def _files(body: bytes, boundary: bytes) -> list[bytes]:
    between = b"\r\n--" + boundary
    place = body.find(between[2:])
    # Some clients begin with an empty line, of two bytes.
    if place not in (0, 2) or body[:place].strip():
        raise BadRequest(400, "the form cannot be read: it does not begin with its boundary")
    place += len(between) - 2
    files: list[bytes] = []
    for _ in range(_MOST_PARTS):
        if body.startswith(_END, place):
            return files
        if not body.startswith(b"\r\n", place):
            raise BadRequest(400, "the form cannot be read: a boundary is not followed by a line break")
        end = body.find(between, place + 2)
        if end < 0:
            raise BadRequest(400, "the form cannot be read: it is truncated")
        # A part without headers begins with an empty line.
        blank = body.find(b"\r\n\r\n", place, min(end, place + _MOST_HEADER_BYTES))
        if blank < 0:
            raise BadRequest(400, f"the form cannot be read: a part has no headers, or over {_MOST_HEADER_BYTES} bytes")
        if _is_file(body[place:blank]):
            files.append(body[blank + 4 : end])
        place = end + len(between)
    raise BadRequest(400, f"the form has more than {_MOST_PARTS} parts")


def _is_file(head: bytes) -> bool:
    lines = [line.partition(b":") for line in head.split(b"\r\n")]
    fields = {name.strip().lower(): value.strip() for name, _, value in lines}
    if fields.get(b"content-transfer-encoding", b"").lower() not in _UNENCODED:
        raise BadRequest(400, "the form's file must be sent unencoded, without a Content-Transfer-Encoding")
    return _FILENAME.search(fields.get(b"content-disposition", b"")) is not None


_IMAGE, _CHANNELS = 3, (1, 3, 4)
# Compared by exact type: bool is an int, but true is not a pixel.
_NUMBERS = {int, float}


def nested_shape(values: Any) -> tuple[int, ...]:
    """Return the length of the first list at each level: the shape, if the lists are regular."""
    shape: list[int] = []
    while isinstance(values, list) and len(shape) <= _IMAGE + 1:
        shape.append(len(values))
        values = values[0] if values else None
    return tuple(shape)


def flat_numbers(values: Any, levels: int, where: str) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape and the flattened numbers of nested lists; BadRequest if they are ragged or not numeric."""
    shape: list[int] = []
    level: list[Any] = [values]
    while (kinds := set(map(type, level))) == {list}:
        lengths = set(map(len, level))
        if len(lengths) != 1:
            raise BadRequest(400, f"{where}: rows of different lengths")
        if len(shape) == levels:
            raise BadRequest(400, f"{where}: expected at most {levels} levels of lists")
        shape.append(lengths.pop())
        level = list(chain.from_iterable(level))
    if list in kinds:
        raise BadRequest(400, f"{where}: rows of different lengths")
    if not kinds <= _NUMBERS:
        raise BadRequest(400, f"{where}: expected numbers from 0 to 255")
    return tuple(shape), level


def picture_of_list(values: Any, where: str) -> Picture:
    """Return nested lists of rows of pixels of channels, in 0..255, as uint8 [H, W, 3]; BadRequest if invalid."""
    shape, numbers = flat_numbers(values, _IMAGE, where)
    return picture_of_numbers(parse_bytes(numbers, where), shape, where)


def picture_of_numbers(values: NDArray[np.uint8], shape: Sequence[int], where: str) -> NDArray[np.uint8]:
    """Return flat uint8 values as a picture uint8 [H, W, 3]; BadRequest if `shape` is not a picture's."""
    if len(shape) != _IMAGE or shape[2] not in _CHANNELS or values.size == 0:
        raise BadRequest(400, f"{where}: expected [height, width, 3], found shape {list(shape)}")
    picture = values.reshape(shape)
    return np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else np.ascontiguousarray(picture[..., :3])


def parse_bytes(numbers: list[Any], where: str) -> NDArray[np.uint8]:
    """Return whole numbers in 0..255 as a flat uint8 array."""
    try:
        # bytes() checks types and range in C, and needs an eighth of the memory of an int64 array.
        return np.frombuffer(bytes(numbers), np.uint8)
    except ValueError:
        raise BadRequest(400, f"{where}: expected numbers from 0 to 255") from None
    except TypeError:  # some are floats
        values = np.array(numbers, np.float64)
    if not (values.min() >= 0 and values.max() <= np.iinfo(np.uint8).max):
        raise BadRequest(400, f"{where}: expected numbers from 0 to 255")
    whole = values.astype(np.uint8)
    if not np.array_equal(whole, values):
        raise BadRequest(400, f"{where}: expected integers from 0 to 255")
    return whole


def check_sizes(sizes: Sequence[tuple[int, int]], settings: ServerSettings, where: Sequence[str]) -> None:
    """Raise BadRequest if a picture, or all of a request together, exceeds the pixel limits."""
    for (height, width), name in zip(sizes, where, strict=True):
        if height * width > settings.max_pixels:
            raise BadRequest(400, f"{name}: {width}x{height} exceeds {settings.max_pixels} pixels")
    total = sum(height * width for height, width in sizes)
    if total > settings.max_request_pixels:
        most = settings.max_request_pixels
        raise BadRequest(413, f"the request's pictures have {total} pixels, more than {most}")


def decode_pictures(given: Sequence[Any], settings: ServerSettings, where: Sequence[str] = ()) -> list[Picture]:
    """Return upright pictures, uint8 [H, W, 3] each.

    Args:
        given: For each an image file's bytes (JPEG, PNG, BMP, GIF, TIFF, WebP), or nested lists of rows of pixels.

    Raises:
        BadRequest: If one is not a picture, or they are too large.
    """
    names = where or [f"picture {number}" for number in range(len(given))]
    try:
        sizes = [_size(picture, name) for picture, name in zip(given, names, strict=True)]
        check_sizes(sizes, settings, names)
        return [
            # Upright, as no annotation refers to the stored pixels of a client's photo.
            decode_image(picture, name, upright=True, white_level=settings.white_level)
            if isinstance(picture, bytes)
            else picture_of_list(picture, name)
            for picture, name in zip(given, names, strict=True)
        ]
    except DataError as error:
        raise BadRequest(400, str(error)[:300]) from None


def _size(given: Any, where: str) -> tuple[int, int]:
    if isinstance(given, bytes):
        return image_size(given, where)
    shape = nested_shape(given)
    if len(shape) != _IMAGE:
        raise BadRequest(400, f"{where}: expected [height, width, 3], found shape {list(shape)}")
    return shape[0], shape[1]


def decode_base64(text: Any, where: str) -> bytes:
    """Return the bytes of base64 text, in either alphabet; BadRequest if it is invalid."""
    if not isinstance(text, str):
        raise BadRequest(400, f"{where}: expected base64 text, found {type(text).__name__}")
    try:
        plain = text.replace("-", "+").replace("_", "/").rstrip("=\n")
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(400, f"{where}: invalid base64") from None


def picture_of_upload(body: bytes, content_type: str, settings: ServerSettings) -> Picture:
    """Return a body's picture, from an image file or a form with one, as uint8 [H, W, 3]; BadRequest if it has none."""
    is_form = content_type.lower().startswith("multipart/form-data")
    file = file_of_form(body, content_type) if is_form else body
    (picture,) = decode_pictures([file], settings, ["the image"])
    return picture
