"""Decoding image files of all kinds into RGB.

| stored as                       | becomes                                             |
|---------------------------------|-----------------------------------------------------|
| gray, 1 bit                     | three equal channels                                |
| palette                         | its colors; transparency is dropped                |
| RGBA, LA                        | RGB, gray; the alpha channel is dropped, not blended |
| CMYK, YCbCr, Lab                | RGB                                                 |
| more than 8 bits, or floats     | by what is white in the data; else the upper 8 of 16 |
| an EXIF orientation             | see `decode_image`                                  |
| several frames (GIF, TIFF, MPO) | the first                                           |
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from boxwright.base.errors import DataError, first_line, is_shortage
from boxwright.base.files import read_file, reading_file
from boxwright.base.limits import IMAGE_PIXELS
from boxwright.data.picture_files import count_webp_pixels, picture_format
from boxwright.data.png_checks import PNG_SIGNATURE, check_png, has_exif_after_pixels
from boxwright.types.pixels import LARGEST, WIDE_MODES, ValueRange, read_pil, to_levels

_JPEG = b"\xff\xd8\xff"


# An allowlist: some of Pillow's formats start other programs (EPS) or are unmaintained. JPEG includes MPO.
_AVIF = ("AVIF",) if find_spec("PIL.AvifImagePlugin") else ()
FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "TIFF", "WEBP", "PPM", *_AVIF)
# White of integers where nothing else is stated: TensorFlow keeps the upper 8 of 16 bits.
_SIXTEEN_BITS = 65535.0


def decode_image(
    data: bytes,
    where: str,
    *,
    upright: bool = False,
    declared: tuple[int, int] | None = None,
    white_level: float = 0.0,
) -> NDArray[np.uint8]:
    """Decode an image file, uint8 [H, W, 3].

    Args:
        upright: Whether an EXIF orientation turns the image, as viewers show it; otherwise pixels stay as stored, as
            TensorFlow reads them.
        declared: The (height, width) that an annotation states, if any. Where it is that of the stored or of the turned
            image alone, it decides in place of `upright`: boxes refer to that image.

    Raises:
        DataError: If the bytes are not an image of a format in `FORMATS`, are truncated or damaged, or the image has no
            pixels, or more than `limits.IMAGE_PIXELS`.
    """
    if (plain := _decode_plain_jpeg(data)) is not None:
        return plain
    with _open_image(data, where) as image:
        orientation = _orientation(image)
        by_size = upright_by_size(_stored_size(image), orientation, declared)
        turn = orientation if (upright if by_size is None else by_size) else 1
        pixels = _decode_jpeg(data) if image.format in ("JPEG", "MPO") else None
        if image.format == "PNG":
            check_png(data)
        if pixels is None:
            pixels = _to_rgb(image, data, where, white_level)
            if orientation != _orientation(image):
                # Pillow turns TIFF upright when it reads the pixels, and then removes the orientation.
                turn = 1 if turn == orientation else _BACK.get(orientation, orientation)
        # A copy, since torch refuses negative strides.
        return _TURNS[turn](pixels).copy() if turn in _TURNS else pixels


@contextmanager
def _open_image(data: bytes, where: str) -> Iterator[Image.Image]:
    """Open an image of an accepted format and size; errors here or while it is used become a `DataError`."""
    if not isinstance(data, bytes):
        raise DataError(f"{where}: expected the bytes of an image file, found {type(data).__name__}")
    with _open_image_file(io.BytesIO(data), where) as image:
        yield image


@contextmanager
def _open_image_file(file: BinaryIO, where: str) -> Iterator[Image.Image]:
    """Open an image as `_open_image`, reading no more of its file than is needed."""
    head = file.read(32)
    if not head:
        raise DataError(f"{where}: the image is empty (0 bytes)")
    file.seek(0)
    pixels = count_webp_pixels(head)  # libwebp allocates when the file is opened
    _raise_pillow_limit(IMAGE_PIXELS.value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Pillow's warnings about odd EXIF data
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as image:
                _check_size(image, where)
                pixels = image.width * image.height
                yield image
    except UnidentifiedImageError:
        name = picture_format(head)
        what = (
            f"{name} cannot be decoded here: store the picture as JPEG or PNG, or update Pillow"
            if name
            else f"not an image of a known format (starts with {head[:8]!r})"
        )
        raise DataError(f"{where}: {what}") from None
    except DataError:
        raise
    except Image.DecompressionBombError:
        # Its own limit is above ours for all sizes that are known before this.
        problem = f"more than the {IMAGE_PIXELS.value:,} {IMAGE_PIXELS.what} allowed"
        raise DataError(f"{where}: {problem} ({IMAGE_PIXELS.variable} raises that)") from None
    except Exception as error:  # Pillow's plugins raise all kinds of exceptions
        if is_shortage(error) or not _has_memory(pixels):
            raise MemoryError(f"{where}: not enough memory to decode the image") from error
        raise DataError(f"{where}: the image cannot be decoded: {first_line(error)}") from None


# The most that a library allocates: libwebp two canvases and the picture, of 4 bytes a pixel each.
_LIBRARY_BYTES = 12


def _has_memory(pixels: int) -> bool:
    """Return whether there is memory to decode so many pixels; errors of libraries may not tell lack from damage."""
    try:
        np.empty(_LIBRARY_BYTES * pixels, np.uint8)
    except MemoryError:
        return False
    return True


def _raise_pillow_limit(pixels: int) -> None:
    """Raise Pillow's own limit if a user raised ours above it."""
    if Image.MAX_IMAGE_PIXELS is not None and pixels > Image.MAX_IMAGE_PIXELS and pixels != IMAGE_PIXELS.default:
        Image.MAX_IMAGE_PIXELS = pixels


def _check_size(image: Image.Image, where: str) -> None:
    size = f"{image.width}×{image.height}"
    if not image.width or not image.height:
        raise DataError(f"{where}: the image has no pixels ({size})")
    if problem := IMAGE_PIXELS.exceeded(image.width * image.height):
        raise DataError(f"{where}: {size}: {problem}")


def image_size(data: bytes, where: str) -> tuple[int, int]:
    """Return (height, width) from an image file's header; a `DataError` as for `decode_image`."""
    with _open_image(data, where) as image:
        return image.height, image.width


@dataclass(frozen=True)
class ImageHeader:
    """What an image file says before its pixels.

    Attributes:
        size: (height, width) as stored.
        orientation: EXIF's, 1 to 8; 1 if the file has none.
    """

    size: tuple[int, int]
    orientation: int

    def size_for(self, declared: tuple[int, int] | None, *, upright: bool) -> tuple[int, int]:
        """Return the (height, width) of the image as `decode_image` returns it."""
        by_size = upright_by_size(self.size, self.orientation, declared)
        turned = self.orientation >= 5 and (upright if by_size is None else by_size)
        return self.size[::-1] if turned else self.size


def read_header(path: str | Path) -> ImageHeader:
    """Return an image file's size and orientation; a `DataError` as for `decode_image`."""
    with reading_file(path) as file, _open_image_file(file, str(path)) as image:
        return ImageHeader(_stored_size(image), _orientation(image))


def parse_header(data: bytes, where: str) -> ImageHeader:
    """Return the size and orientation of an image file's bytes; a `DataError` as for `decode_image`."""
    with _open_image(data, where) as image:
        return ImageHeader(_stored_size(image), _orientation(image))


# EXIF orientation to the transform that makes pixels upright.
_ORIENTATION = 0x0112
_WIDTH, _LENGTH = 256, 257  # TIFF's tags
_TURNS: dict[int, Callable[[NDArray[np.uint8]], NDArray[np.uint8]]] = {
    2: lambda array: array[:, ::-1],
    3: lambda array: array[::-1, ::-1],
    4: lambda array: array[::-1],
    5: lambda array: array.transpose(1, 0, 2),
    6: lambda array: np.rot90(array, -1),
    7: lambda array: array[::-1, ::-1].transpose(1, 0, 2),
    8: lambda array: np.rot90(array),
}
_BACK = {6: 8, 8: 6}  # the others undo themselves


def _stored_size(image: Image.Image) -> tuple[int, int]:
    """Return the (height, width) of an opened image's pixels as its file has them."""
    if isinstance(image, TiffImageFile):
        # Newer releases of Pillow state the size of a file that has to be turned as it is after that.
        return int(image.tag_v2[_LENGTH]), int(image.tag_v2[_WIDTH])
    return image.height, image.width


def _decode_plain_jpeg(data: bytes) -> NDArray[np.uint8] | None:
    """Decode a JPEG that states no orientation; None for what Pillow has to look at: damage, or too little memory."""
    # Pillow looks for the orientation in EXIF, and then in XMP.
    if not isinstance(data, bytes) or data[:3] != _JPEG or b"Exif" in data or b"rientation" in data:
        return None
    try:
        height, width = simplejpeg.decode_jpeg_header(data)[:2]
        return None if IMAGE_PIXELS.exceeded(height * width) else _decode_jpeg(data)
    except (ValueError, MemoryError):
        return None


def _decode_jpeg(data: bytes) -> NDArray[np.uint8] | None:
    """Decode as TensorFlow does, with the fast DCT; None for files that only Pillow reads (CMYK, slight damage)."""
    try:
        colors = simplejpeg.decode_jpeg_header(data)[2]
        if colors in ("Gray", "YCbCr", "RGB"):
            return np.asarray(simplejpeg.decode_jpeg(data, fastdct=True))
        simplejpeg.decode_jpeg(data, "CMYK")  # checks that the file is complete; Pillow converts the colors
    except ValueError as error:
        if is_shortage(error):  # which Pillow would call a broken stream
            raise
        if "premature end" in str(error).lower():
            raise ValueError(f"it is cut off ({error})") from None
    return None


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; 1 (as stored) if it is missing or invalid."""
    # Pillow would decode a PNG to look for EXIF after its pixels, before anything has checked them.
    early = isinstance(image, PngImageFile) and not (image.fp and has_exif_after_pixels(image.fp))
    exif = Image.Image.getexif(image) if early else image.getexif()
    value = exif.get(_ORIENTATION, 1)
    return next((known for known in _TURNS if value == known), 1)


def upright_by_size(stored: tuple[int, int], orientation: int, declared: tuple[int, int] | None) -> bool | None:
    """Return whether a declared (height, width) is that of the upright image; None if it does not tell.

    Args:
        stored: (height, width) of the pixels as stored.
        orientation: EXIF's; 5 to 8 exchange height and width.
    """
    if orientation not in (5, 6, 7, 8) or stored[0] == stored[1] or declared is None:
        return None
    return {stored: False, stored[::-1]: True}.get(declared)


def to_rgb(
    image: Image.Image, white_level: float = 0.0, where: str = "the image", *, upright: bool = False
) -> NDArray[np.uint8]:
    """Return an opened image's pixels, uint8 [H, W, 3], as stored or upright; `white_level` as for `decode_image`."""
    pixels = to_levels(read_pil(image, upright=upright), white_level, where, wide=_SIXTEEN_BITS)
    return np.repeat(pixels[..., None], 3, axis=2) if pixels.ndim == 2 else pixels


def _to_rgb(image: Image.Image, data: bytes, where: str, white_level: float) -> NDArray[np.uint8]:
    # Pillow reads colors of 16 bits by their upper 8, which is right for their own white alone.
    if white_level not in (0.0, 1.0, _SIXTEEN_BITS) and (colors := _deep_colors(image, data)) is not None:
        return to_levels(colors, white_level, where, wide=_SIXTEEN_BITS)
    return to_rgb(image, white_level, where)


_BITS, _MOST_SAMPLE = 258, 281  # TIFF's tags


def _deep_colors(image: Image.Image, data: bytes) -> NDArray[Any] | None:
    """Return the values of an image of several channels of more than 8 bits, [H, W, 3]; None for any other."""
    if image.mode in WIDE_MODES or _bits(image, data) <= 8:
        return None
    import cv2  # a process that opens an export for a trial has no memory for it

    values = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_ANYDEPTH | cv2.IMREAD_COLOR_RGB)
    if values is None:
        raise ValueError("its colors of more than 8 bits cannot be read")
    return np.asarray(values)


def _bits(image: Image.Image, data: bytes) -> int:
    """Return the bits of a channel, as the file says."""
    if image.format == "PNG":
        return data[24]  # of IHDR, which comes first
    if isinstance(image, TiffImageFile):
        bits = image.tag_v2.get(_BITS, (8,))
        return max(bits) if isinstance(bits, tuple) else int(bits)
    return 8


def measure_depth(data: bytes, where: str) -> ValueRange | None:
    """Return the range of an image file's values if it has more than 8 bits; None for others, most of them unopened.

    Raises:
        DataError: As for `decode_image`.
    """
    is_png = data.startswith(PNG_SIGNATURE)
    if (is_png and data[24:25] < b"\x10") or not (is_png or data.startswith((b"II", b"MM", b"P5", b"P6"))):
        return None
    with _open_image(data, where) as image:
        values = np.asarray(image) if image.mode in WIDE_MODES else _deep_colors(image, data)
        return None if values is None else ValueRange.measure(values, _stated_white(image))


_DARK = 4095  # a sixteenth of 16 bits


def explain_darkness(data: bytes, where: str) -> str:
    """Return a line about an image file that is nearly black if read by the upper 8 of 16 bits; else nothing."""
    try:
        values = measure_depth(data, where)
    except DataError:  # raised where the image is read
        return ""
    return "" if values is None or values.kind != "integers" else explain_dark_values(values.largest, where)


def explain_dark_values(largest: float, where: str) -> str:
    """Return a line about an image that its largest value leaves nearly black by the upper 8 of 16 bits, or nothing."""
    if not 0 < largest <= _DARK:
        return ""
    return (
        f"{where}: its values, of 16 bits, are at most {largest:,.0f}: it is nearly black by the upper 8 bits; "
        "state what is white, 4095 for 12 bits: scale=4095 in Python, --white_level 4095 for a command"
    )


def _stated_white(image: Image.Image) -> float:
    """Return the white level that a TIFF states by its bits or its largest value; 0 if it does not."""
    if not isinstance(image, TiffImageFile) or image.mode == "F":
        return 0.0
    bits = image.tag_v2.get(_BITS, (8,))
    depth = max(bits) if isinstance(bits, tuple) else int(bits)
    most = image.tag_v2.get(_MOST_SAMPLE, 0)
    most = max(most) if isinstance(most, tuple) else most
    if depth not in (8, 16, 32):
        return float(2**depth - 1)
    return float(most) if isinstance(most, int) and LARGEST < most < _SIXTEEN_BITS else 0.0


def read_image(
    path: str | Path, *, upright: bool = False, declared: tuple[int, int] | None = None, white_level: float = 0.0
) -> NDArray[np.uint8]:
    """Read and decode an image file, as `decode_image`."""
    return decode_image(read_file(path), str(path), upright=upright, declared=declared, white_level=white_level)


def encode_picture(image: NDArray[np.uint8], suffix: str) -> bytes:
    """Return a drawn picture, uint8 [H, W, 3], encoded for speed in the format of a suffix.

    Args:
        suffix: ".png", or ".jpg", which keeps full color resolution, as thin lines need it.
    """
    if suffix.lower() == ".png":
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, format="PNG", compress_level=1)
        return buffer.getvalue()
    return _full_color_jpeg(image, _DRAWN_QUALITY)


_DRAWN_QUALITY, _WHOLE_QUALITY = 92, 95


def _full_color_jpeg(image: NDArray[np.uint8], quality: int) -> bytes:
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=quality, colorsubsampling="444"))


def encode_whole_jpeg(image: NDArray[np.uint8]) -> bytes:
    """Return the bytes of a JPEG that replaces another of this image, uint8 [H, W, 3], with little loss."""
    return _full_color_jpeg(image, _WHOLE_QUALITY)


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """Return the bytes of a PNG of an image, uint8 [H, W] or [H, W, 3]."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG")
    return buffer.getvalue()


def recompress_jpeg(image: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    """Return an image, uint8 [H, W, 3], after JPEG compression with TensorFlow's settings; quality 0 counts as 1."""
    return np.asarray(simplejpeg.decode_jpeg(encode_jpeg(image, max(quality, 1)), fastdct=True))


def encode_jpeg(image: NDArray[np.uint8], quality: int = 92) -> bytes:
    """Return the bytes of a JPEG of an image, uint8 [H, W, 3], at quality 1 to 95."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="JPEG", quality=quality)
    return buffer.getvalue()


# Images that NumPy stored (`numpy.save`), which may have more channels than image files.
ARRAY_SUFFIX = ".npy"
_IMAGE_DIMENSIONS, _MOST_CHANNELS = 3, 32


def read_array(path: str | Path) -> NDArray[np.uint8]:
    """Return the image in a .npy file, uint8 [H, W, C].

    Raises:
        DataError: If the file cannot be read, is truncated or holds anything else, or more pixels than
            `limits.IMAGE_PIXELS`.
    """
    file = io.BytesIO(read_file(path))
    try:
        is_first = np.lib.format.read_magic(file) == (1, 0)
        read_shape = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
        shape, is_transposed, dtype = read_shape(file)
    except (ValueError, EOFError) as error:
        raise DataError(f"{path}: no array that numpy.save wrote: {str(error)[:200]}") from None
    if dtype != np.uint8 or len(shape) != _IMAGE_DIMENSIONS or min(shape) < 1 or shape[2] > _MOST_CHANNELS:
        raise DataError(f"{path}: expected an image, uint8 [height, width, channels], found {dtype} {shape}")
    if problem := IMAGE_PIXELS.exceeded(shape[0] * shape[1]):
        raise DataError(f"{path}: {shape[1]}×{shape[0]}: {problem}")
    count = shape[0] * shape[1] * shape[2]
    values = np.frombuffer(file.read(count), np.uint8)
    if len(values) != count:
        raise DataError(f"{path}: truncated: {len(values)} of {count} bytes of pixels")
    return values.reshape(shape[::-1]).transpose().copy() if is_transposed else values.reshape(shape).copy()
