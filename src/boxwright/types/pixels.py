"""What an image may be: its layout, its type, and which of its values is white.

Detectors read levels of 0..255. Images of 8 bits, `uint8`, have them, whatever else is stated. All others have the
white level of their data set, which a run measures or is given, and stores; no image's own range changes it.

| values                           | white level                                               |
|----------------------------------|-----------------------------------------------------------|
| integers of at most 255          | 255                                                       |
| wider integers                   | 1023, 4095, 16383 or 65535: the least that holds the data |
| floats of at most 1              | 1, as in torchvision                                      |
| floats above 2                   | as for integers                                           |
| negative values, as of Normalize | none: they are refused                                    |

Dimensions: H W image, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from boxwright.base.errors import DataError

LARGEST = 255
# White of 8 to 16 bits.
_DEPTHS = {bits: 2**bits - 1 for bits in (8, 10, 12, 14, 16)}
_IMAGE, _COLORS = 3, 3
_OF_COLORS = (1, 3, 4)
# Floats that were resized or converted pass their limits by a rounding error.
_ROUNDING = 1e-3
# Floats between 1 and this are neither in 0..1 nor plausible in 0..255.
_UNCLEAR = 2.0
# Pillow's modes of more than 8 bits in one channel.
WIDE_MODES = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
_WITH_ALPHA = ("P", "PA", "LA", "RGBA", "La", "RGBa")
Kind = Literal["bytes", "integers", "floats"]


def pixel_kind(dtype: Any) -> Kind | None:
    """Return what an image's data type holds; None for one that no image has."""
    if dtype == np.uint8:
        return "bytes"
    return {"i": "integers", "u": "integers", "f": "floats"}.get(np.dtype(dtype).kind)  # type: ignore[return-value]


def group_images(numbers: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    """Return the numbers of images with equal keys together, such as their sizes, each group in order, by its first."""
    groups: dict[Hashable, list[int]] = {}
    for number in numbers:
        groups.setdefault(key(number), []).append(number)
    return list(groups.values())


_ORIENTATION = 0x0112


def exif_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of a PIL image, 1 to 8; 1 if it has none that is valid."""
    value = image.getexif().get(_ORIENTATION, 1)
    return next((known for known in range(1, 9) if value == known), 1)


def read_pil(image: Image.Image, *, upright: bool = True) -> NDArray[Any]:
    """Return the pixels of a PIL image.

    Args:
        image: A PIL image, which may be of an opened file.
        upright: Whether its EXIF orientation turns it, as viewers show it and as files are read.

    Returns:
        uint8 [H, W, 3] in RGB, without alpha; or the values as they are, [H, W], of a mode of more than 8 bits.
    """
    if upright and exif_orientation(image) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode in WIDE_MODES:
        return np.asarray(image)
    if image.mode in _WITH_ALPHA:
        return np.ascontiguousarray(np.asarray(image.convert("RGBA"))[..., :_COLORS])
    return np.asarray(np.array(image.convert("RGB")))


def to_hwc(image: Any, where: str, channels: int = _COLORS) -> NDArray[Any]:
    """Return an array or a tensor as an array [H, W, channels]; gray is repeated, alpha is dropped.

    Args:
        image: An array [H, W] or [H, W, C], or a tensor [C, H, W] or [H, W].
        where: Its place, for errors.
        channels: The detector's. If more than 3, images have exactly so many.

    Returns:
        The values as they are, in the array's own type.

    Raises:
        DataError: If it is no image.
    """
    is_tensor = hasattr(image, "detach")
    array: NDArray[Any] = _tensor_values(image) if is_tensor else image
    accepted = _OF_COLORS if channels == _COLORS else (channels,)
    if not isinstance(array, np.ndarray) or array.ndim not in (_IMAGE - 1, _IMAGE) or array.size == 0:
        raise _no_image(image, where, channels)
    if array.ndim == _IMAGE - 1:
        array = array[..., None]
    elif is_tensor:
        array = array.transpose(1, 2, 0)
    if array.shape[2] not in accepted:
        raise _no_image(image, where, channels)
    if pixel_kind(array.dtype) is None:
        raise DataError(f"{where}: expected numbers in 0..255, found {array.dtype}")
    if array.shape[2] == 1 and channels == _COLORS:
        return np.repeat(array, _COLORS, axis=2)
    if array.shape[2] == channels:
        return array
    colors: NDArray[Any] = array[..., :channels]
    return colors


def _tensor_values(tensor: Any) -> Any:
    tensor = tensor.detach().cpu()
    # NumPy has no bfloat16.
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _no_image(image: Any, where: str, channels: int) -> DataError:
    shape = getattr(image, "shape", None)
    found = type(image).__name__ if shape is None else f"shape {tuple(shape)}"
    wanted = "1, 3 or 4 channels" if channels == _COLORS else f"the detector's {channels} channels"
    kind = "CHW tensor" if hasattr(image, "detach") else "HWC array"
    return DataError(f"{where}: expected a {kind} with {wanted} and some pixels, found {found}")


# How a caller states the scale of images in one call: by name, or by the value that is white.
Scale = Literal["guess", "pixels", "unit"] | float
_NAMED_SCALES = {"guess": 0.0, "pixels": float(LARGEST), "unit": 1.0}


def find_white_level(scale: Scale, stored: float) -> float:
    """Return the white level that a call states; of "guess" the one that the detector was trained with.

    Args:
        scale: "guess", "pixels", "unit", or the value that is white.
        stored: The detector's; 0 if it was trained with images of 8 bits.

    Returns:
        The level; 0 if none is stated or stored.

    Raises:
        DataError: If the scale is neither a name of one nor a number above 0.
    """
    if isinstance(scale, str):
        if scale not in _NAMED_SCALES:
            raise DataError(f"scale: expected {' or '.join(_NAMED_SCALES)}, found {scale!r}")
        return stored if scale == "guess" else _NAMED_SCALES[scale]
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < np.inf:
        raise DataError(f"scale: expected {' or '.join(_NAMED_SCALES)}, or the value that is white, found {scale!r}")
    return float(scale)


@dataclass(frozen=True)
class ValueRange:
    """The values of one image, or of several.

    Attributes:
        dtype: The name of the data type.
        least: The smallest value; NaN if some values are not finite.
        white: The white level that the image's file states; 0 if it states none.
    """

    kind: Kind
    dtype: str
    least: float
    largest: float
    white: float = 0.0

    @classmethod
    def measure(cls, image: NDArray[Any], white: float = 0.0) -> ValueRange:
        """Return the range of an image of a type that `pixel_kind` knows."""
        kind = pixel_kind(image.dtype) or "bytes"
        return cls(kind, str(image.dtype), float(image.min()), float(image.max()), white)

    def __str__(self) -> str:
        return f"{self.dtype} of {_number(self.least)} to {_number(self.largest)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) >= _UNCLEAR else f"{value:.4g}"


_STATE = "train_input_reader.white_level"


def choose_white_level(ranges: Sequence[ValueRange], where: str) -> tuple[float, str]:
    """Return the white level of a data set, judged by some of its images, and a line that says so.

    Args:
        ranges: Of those images.
        where: The data set's name, for errors.

    Returns:
        The level and the line; 0 and nothing if all images are of 8 bits, or all others are black.

    Raises:
        DataError: If the values follow no convention, or several.
    """
    levels: dict[float, ValueRange] = {}
    for kind in ("integers", "floats"):
        same = [item for item in ranges if item.kind == kind]
        if not same:
            continue
        joined = ValueRange(
            same[0].kind,
            " and ".join(sorted({item.dtype for item in same})),
            min(item.least for item in same),
            max(item.largest for item in same),
            max(item.white for item in same),
        )
        if level := _level_of_kind(joined, where):
            levels[level] = joined
    if LARGEST in levels and 1.0 in levels:  # floats have a convention of their own beside integers of 8 bits
        del levels[LARGEST]
    if len(levels) > 1:
        found = " and ".join(str(values) for values in levels.values())
        raise DataError(f"{where}: the images have several scales: {found}; bring them to one, such as uint8")
    for level, values in levels.items():
        return level, _explain(level, values, len(ranges))
    return 0.0, ""


def _level_of_kind(values: ValueRange, where: str) -> float:
    """Return the white level of values of one kind; 0 for black images."""
    if not math.isfinite(values.least) or not math.isfinite(values.largest):
        raise DataError(f"{where}: some of the images' {values.dtype} values are not finite")
    if values.least < -_ROUNDING:
        raise DataError(
            f"{where}: the images are {values}, as after Normalize or a conversion to [-1, 1]; leave that out: the "
            "network scales its input itself. Images are uint8, or floats in 0..1"
        )
    if values.white:
        return values.white
    if values.kind == "floats" and values.largest <= 1 + _ROUNDING:
        return 1.0 if values.largest > 0 else 0.0
    if values.kind == "floats" and values.largest <= _UNCLEAR:
        raise DataError(
            f"{where}: the images are {values}: clip them to 0..1 (image.clip(0, 1)), or, if they are that dark, state "
            f"{_STATE}: 255"
        )
    white = next((white for white in _DEPTHS.values() if values.largest <= white), 0)
    if not white and values.largest > 0:
        raise DataError(f"{where}: the images are {values}, more than 16 bits; state their white as {_STATE}")
    return float(white if values.largest > 0 else 0)


def _explain(level: float, values: ValueRange, count: int) -> str:
    bits = next((bits for bits, white in _DEPTHS.items() if white == level), 0)
    what = "0..1" if level == 1 else f"0..{level:,.0f}" + (f" ({bits} bits)" if bits else "")
    why = "as the files state" if values.white else f"by the range of {count} images"
    return (
        f"images are {values}: taken for {what}, {why}; detection takes images of more than 8 bits and floats alike "
        f"({_STATE} states another white)"
    )


def check_scale(ranges: Iterable[ValueRange | None], white: float) -> None:
    """Raise a DataError for floats whose scale is unclear, judged by all images of a call.

    Args:
        ranges: Of the images that are not uint8; None for others.
        white: What is stated or stored; 0 if nothing is.
    """
    largest = max((values.largest for values in ranges if values is not None and values.kind == "floats"), default=0.0)
    if 0 < largest <= 1 and (white == 0 or white > LARGEST):
        raise DataError(
            f"the images are floats of which none is above {largest:g}, as if they were in 0..1; expected uint8, or "
            f'floats in 0..{white or LARGEST:g}. Say scale="unit" where they are in 0..1, and scale="pixels" where '
            "they are so dark"
        )


def check_range(values: ValueRange, white: float, where: str, *, wide: float = LARGEST) -> float:
    """Return the white level of an image that is not of 8 bits.

    Args:
        values: Its range.
        white: What is stated or stored for its data; 0 if nothing is.
        where: Its place, for errors.
        wide: The white level of integers if none is stated.

    Returns:
        The level that its values are divided by.

    Raises:
        DataError: If the image has values that its scale does not have.
    """
    if not math.isfinite(values.least) or not math.isfinite(values.largest):
        raise DataError(f"{where}: some of its pixels are not finite")
    # White of floats says nothing of integers.
    stated, usual = (white if white > 1 else 0.0, wide) if values.kind == "integers" else (white, LARGEST)
    level = stated or float(usual)
    slack = level * _ROUNDING if values.kind == "floats" else 0
    if values.least < -slack or values.largest > level + slack:
        raise DataError(
            f"{where}: expected numbers in 0..{level:g}, found {values.least:g} to {values.largest:g} ({values.dtype})"
            + _remedy(values, level)
        )
    return level


def _remedy(values: ValueRange, level: float) -> str:
    if values.least < 0:
        return "; leave out what normalizes them: the network scales its input itself"
    if level == 1:
        return '; clip them to 0..1, or set scale="pixels" if they are in 0..255'
    white = next((white for white in _DEPTHS.values() if values.largest <= white), 0)
    return f"; state their white: scale={white} in a call, white_level in the data's reader" if white else ""


def to_levels(image: NDArray[Any], white: float, where: str, *, wide: float = LARGEST) -> NDArray[np.uint8]:
    """Return an image as levels of 0..255, uint8 of the same shape.

    Args:
        image: Of a type that `pixel_kind` knows; of uint8 it is returned as it is.
        white: As for `check_range`.
        where: As for `check_range`.
        wide: As for `check_range`.

    Returns:
        The levels; the upper 8 of a number of bits, else rounded.

    Raises:
        DataError: As for `check_range`.
    """
    if image.dtype == np.uint8:
        return image
    level = check_range(ValueRange.measure(image), white, where, wide=wide)
    return apply_white_level(image, level)


def check_augmented(image: Any, before: NDArray[Any], where: str) -> NDArray[Any]:
    """Return what an augmentation made of an image in 0..255, as uint8 or float32.

    Args:
        image: What it returned.
        before: What it was given, [H, W, C].
        where: Its name, for errors.

    Returns:
        The same array, if it is uint8 or float32 in 0..255.

    Raises:
        DataError: If it is no array [H, W, C] of as many channels, or has another scale than 0..255.
    """
    channels = before.shape[2]
    if not isinstance(image, np.ndarray) or image.ndim != _IMAGE or image.shape[2] != channels or not image.size:
        shape = getattr(image, "shape", None)
        found = type(image).__name__ if shape is None else f"{type(image).__name__} of shape {tuple(shape)}"
        raise DataError(f"{where}: images became {found}; expected an array [height, width, {channels}]")
    if image.dtype == np.uint8:
        return image
    if pixel_kind(image.dtype) is None:
        raise DataError(f"{where}: images became {image.dtype}; expected uint8, or floats in 0..255")
    values = ValueRange.measure(image)
    if values.kind == "floats" and 0 < values.largest <= 1 < _DARK < before.max():
        raise DataError(
            f"{where}: images in 0..255 became floats of at most {values.largest:g}, as if they were in 0..1; multiply "
            "them by 255, or leave the scaling out: the network scales its input itself"
        )
    check_range(values, LARGEST, f"{where}: images")
    return image.astype(np.uint8 if values.kind == "integers" else np.float32).clip(0, LARGEST)


# An image that is brighter than this is not in 0..1 after an augmentation that left its scale.
_DARK = 8


def bits_to_drop(white: float) -> int | None:
    """Return how many of the lower bits of integers are dropped to leave 8; None if white is no number of bits."""
    return next((bits - 8 for bits, level in _DEPTHS.items() if level == white), None)


def apply_white_level(image: NDArray[Any], white: float) -> NDArray[np.uint8]:
    """Return values in 0..white as uint8 in 0..255: of integers of a number of bits the upper 8, else rounded."""
    if image.dtype.kind in "iu" and (shift := bits_to_drop(white)) is not None:
        return np.asarray(image >> shift).astype(np.uint8)
    scaled: NDArray[Any] = image.astype(np.float64 if image.dtype.itemsize > 4 else np.float32)
    return np.asarray(np.rint(scaled * (LARGEST / white)).clip(0, LARGEST), np.uint8)
