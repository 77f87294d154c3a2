"""What a request may hold: how much is read, and pictures in each form that clients send."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Sequence
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boxwright.data.image_io import decode_image, image_size
from boxwright.errors import DataError
from boxwright.serving.settings import ServerSettings

__all__ = ["BadRequest", "decoded", "parsed_json", "picture_of_list", "picture_of_upload", "read_body", "unpacked"]

Picture = NDArray[np.uint8]
_IMAGE, _CHANNELS = 3, (1, 3, 4)


class BadRequest(Exception):  # noqa: N818  # an answer, with its status
    """A request that is answered with a status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        """Say why.

        Args:
            status: HTTP's.
            reason: A line; it never holds a path.
        """
        super().__init__(reason)
        self.status, self.reason = status, reason


async def read_body(stream: AsyncIterator[bytes], settings: ServerSettings) -> bytes:
    """Return a request's body, counted while it arrives.

    Args:
        stream: Its parts.
        settings: The limit.

    Returns:
        The whole.

    Raises:
        BadRequest: Where it is larger than the limit.
    """
    most = int(settings.max_body_mib * 2**20)
    parts, total = [], 0
    async for part in stream:
        total += len(part)
        if total > most:
            raise BadRequest(413, f"the request is larger than {settings.max_body_mib:g} MiB")
        parts.append(part)
    return b"".join(parts)


def parsed_json(body: bytes) -> dict[str, Any]:
    """Return a body's JSON object.

    Args:
        body: The bytes.

    Returns:
        The object.

    Raises:
        BadRequest: Where it is none.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(400, f"JSON Parse Error: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise BadRequest(400, "expected a JSON object")
    return content


def decoded(data: bytes, settings: ServerSettings, where: str) -> Picture:
    """Return an image file's picture, upright; its size is read before it is decoded.

    Args:
        data: The file's bytes: JPEG, PNG, BMP, GIF, TIFF, WebP.
        settings: The limit of pixels.
        where: Which picture, for errors.

    Returns:
        uint8 [H, W, 3].

    Raises:
        BadRequest: Where it is no image, or too large.
    """
    try:
        height, width = image_size(data, where)
        if height * width > settings.max_pixels:
            raise BadRequest(400, f"{where}: {width}x{height} is over {settings.max_pixels} pixels")
        return decode_image(data, where, upright=True)
    except DataError as error:
        raise BadRequest(400, str(error)[:300]) from None


def unpacked(text: Any, where: str) -> bytes:
    """Return the bytes of base64 text, of either alphabet.

    Args:
        text: The text.
        where: Which picture, for errors.

    Returns:
        The bytes.

    Raises:
        BadRequest: Where it is no base64.
    """
    if not isinstance(text, str):
        raise BadRequest(400, f"{where}: expected base64 text, found {type(text).__name__}")
    try:
        plain = text.replace("-", "+").replace("_", "/").rstrip("=\n")
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(400, f"{where}: this is no base64") from None


def picture_of_list(values: Any, settings: ServerSettings, where: str) -> Picture:
    """Return the picture of nested lists.

    Args:
        values: Rows of pixels of channels, whole numbers of 0 to 255; or an array.
        settings: The limit of pixels.
        where: Which picture, for errors.

    Returns:
        uint8 [H, W, 3].

    Raises:
        BadRequest: Where it is no picture.
    """
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        raise BadRequest(400, f"{where}: rows of unlike lengths") from None
    if array.ndim != _IMAGE or array.shape[2] not in _CHANNELS or array.size == 0:
        raise BadRequest(400, f"{where}: expected [height, width, 3], found shape {list(array.shape)}")
    if array.dtype.kind not in "uif" or array.min() < 0 or array.max() > np.iinfo(np.uint8).max:
        raise BadRequest(400, f"{where}: expected numbers of 0 to 255")
    if array.shape[0] * array.shape[1] > settings.max_pixels:
        raise BadRequest(400, f"{where}: {array.shape[1]}x{array.shape[0]} is over {settings.max_pixels} pixels")
    whole = array.astype(np.uint8)
    if array.dtype.kind == "f" and not np.array_equal(whole, array):
        raise BadRequest(400, f"{where}: expected whole numbers of 0 to 255")
    return np.repeat(whole, 3, axis=2) if whole.shape[2] == 1 else np.ascontiguousarray(whole[..., :3])


def picture_of_upload(body: bytes, content_type: str, settings: ServerSettings) -> Picture:
    """Return the picture of a body that is an image file, or a form with one.

    Args:
        body: The bytes.
        content_type: The request's.
        settings: The limits.

    Returns:
        uint8 [H, W, 3].

    Raises:
        BadRequest: Where there is no picture in it.
    """
    if not content_type.lower().startswith("multipart/form-data"):
        return decoded(body, settings, "the image")
    header = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    try:
        form = BytesParser(policy=HTTP).parsebytes(header + body)
        files: Sequence[Any] = [part.get_payload(decode=True) for part in form.iter_parts() if part.get_filename()]
    except Exception as error:  # noqa: BLE001  # the parser raises whatever a damaged form makes it meet
        raise BadRequest(400, f"the form cannot be read: {type(error).__name__}") from None
    if len(files) != 1 or not isinstance(files[0], bytes):
        raise BadRequest(400, f"expected a form with one file, found {len(files)}")
    return decoded(files[0], settings, "the image")
