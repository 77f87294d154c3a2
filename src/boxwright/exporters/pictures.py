"""The pictures for comparing an export with its detector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from boxwright.base.errors import DataError

Picture = NDArray[np.uint8]
Pictures = Sequence[Picture]
DEFAULT_COUNT = 32
_LEAST_SIZES = 3
_CROPPED = 6


def resized(pictures: Pictures, size: Sequence[int]) -> Pictures:
    """Return pictures uint8 [H, W, C] resized to one (height, width); unchanged if `size` is empty."""
    if not size:
        return pictures
    width_height = (size[1], size[0])
    return [
        np.stack(
            [np.asarray(Image.fromarray(channel).resize(width_height)) for channel in np.moveaxis(picture, 2, 0)], 2
        )
        for picture in pictures
    ]


def spread(count: int, most: int) -> list[int]:
    """Return up to `most` evenly spread numbers below `count`."""
    return sorted({number * count // most for number in range(most)}) if count > most else list(range(count))


def varied(read: Callable[[int], Picture], count: int) -> list[Picture]:
    """Return real pictures uint8 [H, W, 3] of several sizes; DataError if none can be read.

    If they have fewer than three sizes, crops are added: one upright, one wide, one a single row of pixels.

    Args:
        read: Returns the picture of a number below `count`.
    """
    pictures, broken = [], ""
    for number in spread(count, DEFAULT_COUNT):
        try:
            pictures.append(read(number))
        except DataError as error:
            broken = str(error)
    if not pictures:
        raise DataError(broken or "there are no pictures to compare on")
    if len({picture.shape for picture in pictures}) < _LEAST_SIZES:
        pictures += _parts(pictures[:_CROPPED])
    return pictures


def _parts(pictures: Pictures) -> list[Picture]:
    """Return crops of other sizes."""
    parts = []
    for number, picture in enumerate(islice(pictures, _CROPPED)):
        height, width = picture.shape[:2]
        sides = ((height, max(width // 2, 1)), (max(height // 2, 1), width), (1, width))[number % 3]
        parts.append(np.ascontiguousarray(picture[: sides[0], : sides[1]]))
    return parts
