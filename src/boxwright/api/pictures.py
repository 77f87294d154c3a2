"""Reading pictures of any form: paths, addresses, bytes, PIL images, arrays, tensors; without PyTorch.

Dimensions: H W image, C channels.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from boxwright.base.errors import DataError
from boxwright.base.files import cause, is_folder, read_file
from boxwright.data.image_io import (
    ARRAY_SUFFIX,
    decode_image,
    explain_dark_values,
    explain_darkness,
    read_array,
    to_rgb,
)
from boxwright.inference.fetch import fetch_image
from boxwright.inference.files import IMAGES, VIDEOS, find_images
from boxwright.types.pixels import (
    WIDE_MODES,
    Scale,
    ValueRange,
    check_scale,
    exif_orientation,
    find_white_level,
    to_hwc,
    to_levels,
)

if TYPE_CHECKING:
    from torch import Tensor

# What one picture can be; a path may also be a folder or a pattern, and an array four-dimensional: these are several.
OnePicture: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | IO[bytes] | Image.Image | NDArray[Any] | Tensor"
SeveralPictures: TypeAlias = "list[Any] | tuple[Any, ...] | Iterator[Any]"

_LOG = logging.getLogger("boxwright")
_BATCH = 4
_COLORS = 3
_KINDS = "a path, an address, bytes of an image file, an open file, a PIL image, an HWC array or a CHW tensor"


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture that was read, or the reason why it could not be.

    Attributes:
        image: uint8 [H, W, 3] in RGB; of more channels for a detector that takes them; [0, 0, 3] if it was not read.
        source: Its path or address; empty if it had none.
        error: Why it could not be read; empty if it was.
    """

    image: NDArray[np.uint8]
    source: str = ""
    error: str = ""


def is_one(images: Any) -> bool:
    """Whether an argument is one picture, not several: a folder or a pattern is several."""
    if isinstance(images, str | os.PathLike):
        return not _is_several(images)
    if isinstance(images, bytes | bytearray | memoryview | Image.Image) or _is_file_object(images):
        return True
    # Arrays and tensors, without importing PyTorch to ask for its type; below, `detach` marks a tensor.
    return hasattr(images, "ndim") and images.ndim < _BATCH


def iterate_pictures(
    images: Any, scale: Scale = "guess", channels: int = 3, white_level: float = 0.0
) -> Iterator[Picture]:
    """Yield each picture of an argument.

    Args:
        images: One picture, a list, an array or tensor of four dimensions, a folder, or a pattern such as
            `shots/*.jpg`. An EXIF orientation is applied; floats and wider integers are rounded to 8 bits.
        scale: What is white in pictures that are not of 8 bits: "pixels" for 255, "unit" for 1, or the number. "guess"
            takes `white_level`, or else assumes pixels, but refuses a call whose largest float is above 0 and at most
            1; files of 16 bits have their own white.
        channels: The detector's. If more than 3, pictures are arrays, tensors or .npy files of exactly so many.
        white_level: What is white in the pictures that the detector was trained with; 0 if they were of 8 bits.

    Yields:
        The pictures, in order, read one at a time.

    Raises:
        DataError: If a picture is none or cannot be read, or its values have another scale.
    """
    for picture in iterate_pictures_or_errors(images, scale, channels, white_level):
        if picture.error:
            raise DataError(picture.error)
        yield picture


def iterate_pictures_or_errors(
    images: Any, scale: Scale = "guess", channels: int = 3, white_level: float = 0.0
) -> Iterator[Picture]:
    """Yield a `Picture` for each picture of an argument, with `error` for those that cannot be read.

    Args:
        images: As for `iterate_pictures`.
        scale: As for `iterate_pictures`.
        channels: As for `iterate_pictures`.
        white_level: As for `iterate_pictures`.

    Yields:
        As many as there are pictures, in order, read one at a time.

    Raises:
        DataError: If the argument holds no pictures at all, or the values of a list have another scale.
    """
    # A named scale is for arrays: a file of 16 bits is not in 0..1.
    white, of_files = find_white_level(scale, white_level), white_level if isinstance(scale, str) else float(scale)
    if is_one(images):
        images = [images]
    elif isinstance(images, str | os.PathLike):
        images = find_images([Path(images)])
    elif not isinstance(images, Iterable) or isinstance(images, Mapping):
        raise DataError(f"expected {_KINDS}, or a list of such, found {type(images).__name__}")
    is_checked = isinstance(images, Sequence) or hasattr(images, "ndim")
    if is_checked:
        _check_floats(images, white)
    # An iterator may be endless, so its images are checked one at a time.
    for number, image in enumerate(images):
        try:
            if not is_checked:
                _check_floats([image], white)
            file = _read_file(image, f"image {number}", channels)
            where = (file and file.source) or f"image {number}"
            if file is None:
                picture = _from_memory(image, where, (white, of_files), channels)
            else:
                picture = Picture(decode_image(file.data, where, upright=True, white_level=of_files), file.source)
            # Of the first alone, as no scale is known.
            if number == 0 and not of_files and (line := _explain_darkness(image, file, where)):
                _LOG.warning(line)
            yield picture
        except DataError as error:
            named = isinstance(image, str | os.PathLike)
            yield Picture(np.zeros((0, 0, _COLORS), np.uint8), os.fspath(image) if named else "", str(error))


def _explain_darkness(image: Any, file: _File | None, where: str) -> str:
    """Return a line about a picture of 16 bits that is read as nearly black; else nothing."""
    if file is not None:
        return explain_darkness(file.data, where)
    is_deep = isinstance(image, Image.Image) and image.mode in WIDE_MODES and image.mode != "F"
    return explain_dark_values(float(np.asarray(image).max()), where) if is_deep else ""


def _check_floats(images: Iterable[Any], white: float) -> None:
    """Raise a DataError for floats of another scale, judged by the largest of the call."""
    floats = (image.detach() if hasattr(image, "detach") else image for image in images if _is_float(image))
    ends = [(float(image.min()), float(image.max())) for image in floats if 0 not in image.shape]
    check_scale([ValueRange("floats", "floats", *pair) for pair in ends], white)


def _is_float(image: Any) -> bool:
    if hasattr(image, "is_floating_point"):
        return bool(image.is_floating_point())
    return isinstance(image, np.ndarray) and image.dtype.kind == "f"


def _is_several(path: str | os.PathLike[str]) -> bool:
    text = os.fspath(path)
    # A file whose name has brackets is a file, not a pattern; an address may contain any of these characters.
    return "://" not in text and (is_folder(text) or (not os.path.exists(text) and any(c in text for c in "*?[")))


@dataclass(frozen=True)
class _File:
    """The bytes of an image file, and its path or address; empty if it has none."""

    data: bytes
    source: str = ""


def _read_file(image: Any, where: str, channels: int) -> _File | None:
    """Return an image file, wherever it is; None for pixels in memory or in a .npy file."""
    if _is_array_file(image) or (hasattr(image, "ndim") and not isinstance(image, memoryview)):
        return None
    is_path = isinstance(image, str | os.PathLike)
    if channels > _COLORS:
        raise DataError(
            f"{image if is_path else where}: the detector takes images of {channels} "
            f"channels: an array [height, width, {channels}], a tensor [{channels}, height, width] or a .npy file"
        )
    if isinstance(image, str) and image.lower().startswith(("http://", "https://")):
        return _File(fetch_image(image), image)
    if is_path:
        path = Path(image)
        if path.suffix.lower() in VIDEOS:
            raise DataError(f"{path} is a video: boxwright predict {path} detects in its frames")
        if not path.exists() and path.suffix.lower() not in IMAGES:
            raise DataError(f"{path}: no such file; expected {_KINDS}")
        return _File(read_file(path), str(path))
    if _is_file_object(image):
        name = getattr(image, "name", "")
        source = name if isinstance(name, str) else ""
        return _File(_read_file_object(image, source or where), source)
    return _File(bytes(image)) if isinstance(image, bytes | bytearray | memoryview) else None


def _is_array_file(image: Any) -> bool:
    text = os.fspath(image) if isinstance(image, str | os.PathLike) else ""
    return text.lower().endswith(ARRAY_SUFFIX) and "://" not in text


def _from_memory(image: Any, where: str, whites: tuple[float, float], channels: int) -> Picture:
    """Return a picture of a .npy file, a PIL image, an array or a tensor."""
    white, of_files = whites
    if _is_array_file(image):
        return Picture(_pixels(read_array(Path(image)), str(image), white, channels), str(image))
    if isinstance(image, Image.Image):
        return _from_pil(image, where, of_files)
    return Picture(_pixels(image, where, white, channels))


def _is_file_object(image: Any) -> bool:
    """Return whether an argument is an open file, such as io.BytesIO."""
    return callable(getattr(image, "read", None))


def _read_file_object(file: Any, where: str) -> bytes:
    """Return all bytes of an open file, from its start where it can be rewound."""
    try:
        # A buffer that an image was just written to is at its end.
        if callable(seekable := getattr(file, "seekable", None)) and seekable():
            file.seek(0)
        data = file.read()
    except (OSError, ValueError) as error:
        raise DataError(f"{where}: {cause(error)}") from None
    if not isinstance(data, bytes | bytearray):
        raise DataError(
            f'{where}: expected an open file of bytes, as open(path, "rb"); its read() returned {type(data).__name__}'
        )
    return bytes(data)


def _pixels(image: Any, where: str, white: float, channels: int) -> NDArray[np.uint8]:
    """Return an array or tensor as uint8 [H, W, channels]."""
    if not hasattr(image, "detach") and not isinstance(image, np.ndarray):
        raise DataError(f"{where}: expected {_KINDS}, found {type(image).__name__}")
    return np.ascontiguousarray(to_levels(to_hwc(image, where, channels), white, where))


def _from_pil(image: Image.Image, where: str, white: float) -> Picture:
    source = str(getattr(image, "filename", "") or "")
    try:
        image.load()
    # Pillow reads an opened file when its pixels are asked for, and each format raises errors of its own.
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{source or where}: cannot be read: {cause(error)}") from None
    if exif_orientation(image) != 1:
        warnings.warn(
            "the image's EXIF orientation is applied: Result.image is upright, and boxes refer to it", stacklevel=2
        )
    return Picture(to_rgb(image, white, where, upright=True), source)
