"""Reading pictures of any form: paths, addresses, bytes, PIL images, arrays, tensors; without PyTorch.

Dimensions: H W image, C channels.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from boxwright.base.errors import DataError
from boxwright.base.files import cause, is_folder
from boxwright.data.image_io import ARRAY_SUFFIX, decode_image, read_array, read_image, to_rgb
from boxwright.inference.fetch import fetch_image
from boxwright.inference.files import IMAGES, VIDEOS, find_images

_IMAGE, _BATCH = 3, 4
_COLORS = 3
# Numbers of channels that become three: gray is repeated, alpha is dropped.
_OF_COLORS = (1, 3, 4)
_SCALES = ("guess", "pixels", "unit")
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


def iterate_pictures(images: Any, scale: str = "guess", channels: int = 3) -> Iterator[Picture]:
    """Yield each picture of an argument.

    Args:
        images: One picture, a list, an array or tensor of four dimensions, a folder, or a pattern such as
            `shots/*.jpg`. A file's EXIF orientation is applied; floats are rounded to 8 bits.
        scale: The range of floats: "pixels" for 0..255, "unit" for 0..1. "guess" takes them for pixels, but refuses a
            call whose largest float is above 0 and at most 1.
        channels: The detector's. If more than 3, pictures are arrays, tensors or .npy files of exactly so many.

    Yields:
        The pictures, in order, read one at a time.

    Raises:
        DataError: If a picture is none or cannot be read, or its floats have another scale.
    """
    for picture in iterate_pictures_or_errors(images, scale, channels):
        if picture.error:
            raise DataError(picture.error)
        yield picture


def iterate_pictures_or_errors(images: Any, scale: str = "guess", channels: int = 3) -> Iterator[Picture]:
    """Yield a `Picture` for each picture of an argument, with `error` for those that cannot be read.

    Args:
        images: As for `iterate_pictures`.
        scale: As for `iterate_pictures`.
        channels: As for `iterate_pictures`.

    Yields:
        As many as there are pictures, in order, read one at a time.

    Raises:
        DataError: If the argument holds no pictures at all, or the floats of a list have another scale.
    """
    if scale not in _SCALES:
        raise DataError(f"scale: expected {', '.join(_SCALES)}, found {scale!r}")
    if is_one(images):
        images = [images]
    elif isinstance(images, str | os.PathLike):
        images = find_images([Path(images)])
    elif not isinstance(images, Iterable):
        raise DataError(f"expected {_KINDS}, or a list of such, found {type(images).__name__}")
    is_checked = isinstance(images, Sequence) or hasattr(images, "ndim")
    if is_checked:
        _check_floats(images, scale)
    # An iterator may be endless, so its images are checked one at a time.
    for number, image in enumerate(images):
        try:
            if not is_checked:
                _check_floats([image], scale)
            yield _picture(image, f"image {number}", scale, channels)
        except DataError as error:
            named = isinstance(image, str | os.PathLike)
            yield Picture(np.zeros((0, 0, _COLORS), np.uint8), os.fspath(image) if named else "", str(error))


def _check_floats(images: Iterable[Any], scale: str) -> None:
    """Raise a DataError for floats of another scale, judged by the largest of the call."""
    floats = [image.detach() if hasattr(image, "detach") else image for image in images if _is_float(image)]
    largest = max((float(image.max()) for image in floats if 0 not in image.shape), default=0.0)
    if scale == "unit" and largest > 1:
        raise DataError(f'scale="unit": expected floats in 0..1, found {largest:g}; by default floats are in 0..255')
    if scale == "guess" and 0 < largest <= 1:
        raise DataError(
            f"the images are floats of at most {largest:g}, as if they were in 0..1; expected uint8, or "
            'floats in 0..255. Set scale="unit" if they are in 0..1, or scale="pixels" if they are that dark'
        )


def _is_float(image: Any) -> bool:
    if hasattr(image, "is_floating_point"):
        return bool(image.is_floating_point())
    return isinstance(image, np.ndarray) and image.dtype.kind == "f"


def _is_several(path: str | os.PathLike[str]) -> bool:
    text = os.fspath(path)
    # A file whose name has brackets is a file, not a pattern; an address may contain any of these characters.
    return "://" not in text and (is_folder(text) or (not os.path.exists(text) and any(c in text for c in "*?[")))


def _picture(image: Any, where: str, scale: str, channels: int) -> Picture:
    if isinstance(image, str | os.PathLike) and str(image).lower().endswith(ARRAY_SUFFIX) and "://" not in str(image):
        return Picture(_pixels(read_array(Path(image)), str(image), scale, channels), str(image))
    if channels > _COLORS and not (isinstance(image, np.ndarray) or hasattr(image, "detach")):
        raise DataError(
            f"{image if isinstance(image, str | os.PathLike) else where}: the detector takes images of {channels} "
            f"channels: an array [height, width, {channels}], a tensor [{channels}, height, width] or a .npy file"
        )
    if isinstance(image, str) and image.lower().startswith(("http://", "https://")):
        return Picture(decode_image(fetch_image(image), image, upright=True), image)
    if isinstance(image, str | os.PathLike):
        path = Path(image)
        if path.suffix.lower() in VIDEOS:
            raise DataError(f"{path} is a video: boxwright predict {path} detects in its frames")
        if not path.exists() and path.suffix.lower() not in IMAGES:
            raise DataError(f"{path}: no such file; expected {_KINDS}")
        return Picture(read_image(path, upright=True), str(path))
    if _is_file_object(image):
        name = getattr(image, "name", "")
        source = name if isinstance(name, str) else ""
        return Picture(decode_image(_read_file_object(image, source or where), source or where, upright=True), source)
    if isinstance(image, bytes | bytearray | memoryview):
        return Picture(decode_image(bytes(image), where, upright=True))
    if isinstance(image, Image.Image):
        return Picture(to_rgb(image), str(getattr(image, "filename", "") or ""))
    return Picture(_pixels(image, where, scale, channels))


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


def _as_hwc(image: Any, where: str, channels: int) -> NDArray[Any]:
    """Return an array or tensor as an array [H, W, C]; tensors have their channels first."""
    is_tensor = hasattr(image, "detach")
    if not is_tensor and not isinstance(image, np.ndarray):
        raise DataError(f"{where}: expected {_KINDS}, found {type(image).__name__}")
    if is_tensor:
        tensor = image.detach().cpu()
        # NumPy has no bfloat16.
        image = (tensor.float() if _is_float(tensor) else tensor).numpy()
    array: NDArray[Any] = image
    if array.ndim == _IMAGE - 1:
        array = array[None] if is_tensor else array[..., None]
    accepted = _OF_COLORS if channels == _COLORS else (channels,)
    if array.ndim != _IMAGE or array.shape[0 if is_tensor else 2] not in accepted or array.size == 0:
        kind = "CHW tensor" if is_tensor else "HWC array"
        wanted = "1, 3 or 4 channels" if channels == _COLORS else f"the detector's {channels} channels"
        raise DataError(f"{where}: expected a {kind} with {wanted} and some pixels, found shape {tuple(image.shape)}")
    if array.dtype.kind not in "uif":
        raise DataError(f"{where}: expected numbers in 0..255, found {array.dtype}")
    return array.transpose(1, 2, 0) if is_tensor else array


def _pixels(image: Any, where: str, scale: str, channels: int) -> NDArray[np.uint8]:
    """Return an array or tensor as uint8 [H, W, channels]."""
    array = _as_hwc(image, where, channels)
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise DataError(f"{where}: some of its pixels are not finite")
        array = np.rint(array * 255 if scale == "unit" else array)
    if array.min() < 0 or array.max() > 255:
        raise DataError(f"{where}: expected numbers in 0..255, found {array.min():g} to {array.max():g}")
    levels = array[..., :channels].astype(np.uint8)
    return np.repeat(levels, channels, axis=2) if levels.shape[2] == 1 else np.ascontiguousarray(levels)
