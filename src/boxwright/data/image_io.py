"""Decoding image files of every kind into RGB.

| stored as                       | becomes                                             |
|---------------------------------|-----------------------------------------------------|
| grey, 1 bit                     | three equal channels                                |
| palette                         | its colours; transparency is dropped                |
| RGBA, LA                        | RGB, grey; the alpha channel is dropped, not blended |
| CMYK, YCbCr, Lab                | RGB                                                 |
| 16 bits, 32 bits a channel      | the upper 8 of 16 bits                              |
| an EXIF orientation             | see `decode_image`                                  |
| several frames (GIF, TIFF)      | the first                                           |
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from boxwright.errors import DataError

__all__ = ["decode_image", "encode_jpeg", "encode_png", "read_image"]

_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N", "I")


def decode_image(
    data: bytes, where: str, *, upright: bool = False, declared: tuple[int, int] | None = None
) -> NDArray[np.uint8]:
    """Decode an image file.

    Annotations refer to pixels as stored, as TensorFlow and COCO read them; so an EXIF orientation
    is not applied unless `upright`, or unless the annotation's own size says that it was drawn on
    the upright image.

    Args:
        data: The file's bytes.
        where: Its name, for errors.
        upright: Whether to apply an EXIF orientation.
        declared: The (height, width) that the annotation states, if it does.

    Returns:
        uint8 [H, W, 3].

    Raises:
        DataError: Where the bytes are no image, are cut off, or the image has no pixels.
    """
    if not data:
        raise DataError(f"{where}: the image is empty (0 bytes)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Pillow's remarks on odd EXIF data
            with Image.open(io.BytesIO(data)) as image:
                turn = upright or _drawn_upright(image, declared)
                orientation = _orientation(image) if turn else 1
                pixels = _decode_jpeg(data) if image.format == "JPEG" else None
                if pixels is None:
                    pixels = _to_rgb(image)
    except UnidentifiedImageError:
        raise DataError(f"{where}: not an image of a known format (starts with {data[:8]!r})") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{where}: the image cannot be decoded: {error}") from None
    turned: NDArray[np.uint8] = _TURNS[orientation](pixels) if orientation in _TURNS else pixels
    return np.ascontiguousarray(turned)


# What brings pixels stored with an EXIF orientation upright.
_ORIENTATION = 0x0112
_TURNS: dict[int, Callable[[NDArray[np.uint8]], NDArray[np.uint8]]] = {
    2: lambda array: array[:, ::-1],
    3: lambda array: array[::-1, ::-1],
    4: lambda array: array[::-1],
    5: lambda array: array.transpose(1, 0, 2),
    6: lambda array: np.rot90(array, -1),
    7: lambda array: array[::-1, ::-1].transpose(1, 0, 2),
    8: lambda array: np.rot90(array),
}


def _decode_jpeg(data: bytes) -> NDArray[np.uint8] | None:
    """Decode as TensorFlow does, with the fast DCT; None for what only Pillow reads (CMYK, slight damage)."""
    try:
        colours = simplejpeg.decode_jpeg_header(data)[2]
        if colours not in ("Gray", "YCbCr", "RGB"):
            return None
        return np.asarray(simplejpeg.decode_jpeg(data, fastdct=True))
    except ValueError:
        return None


def _orientation(image: Image.Image) -> int:
    return int(image.getexif().get(_ORIENTATION, 1))


def _drawn_upright(image: Image.Image, declared: tuple[int, int] | None) -> bool:
    if declared != (image.width, image.height) or image.width == image.height:
        return False
    return _orientation(image) in (5, 6, 7, 8)


def _to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode in _SIXTEEN_BITS:
        grey = (np.asarray(image).astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if image.mode in ("P", "PA", "LA", "RGBA", "La", "RGBa"):
        image = image.convert("RGBA")
        return np.ascontiguousarray(np.asarray(image)[..., :3])
    return np.array(image.convert("RGB"))


def read_image(
    path: str | Path, *, upright: bool = False, declared: tuple[int, int] | None = None
) -> NDArray[np.uint8]:
    """Read and decode an image file.

    Args:
        path: The file.
        upright: As for `decode_image`.
        declared: As for `decode_image`.

    Returns:
        uint8 [H, W, 3].

    Raises:
        DataError: Where the file cannot be read or decoded.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    return decode_image(data, str(path), upright=upright, declared=declared)


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """Encode an image without loss.

    Args:
        image: uint8 [H, W] or [H, W, 3].

    Returns:
        A PNG file's bytes.
    """
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG")
    return buffer.getvalue()


def encode_jpeg(image: NDArray[np.uint8], quality: int = 92) -> bytes:
    """Encode an image as JPEG.

    Args:
        image: uint8 [H, W, 3].
        quality: JPEG's quality, 1 to 95.

    Returns:
        A JPEG file's bytes.
    """
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="JPEG", quality=quality)
    return buffer.getvalue()
