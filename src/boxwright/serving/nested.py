"""Numbers in nested lists, looked at before an array is made: memory is in proportion to what was sent.

Dimensions: H W picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.serving.requests import BadRequest

_IMAGE, _CHANNELS = 3, (1, 3, 4)
_NUMBERS = {int, float}


def outline(values: Any) -> tuple[int, ...]:
    """Return the lengths of the first list of each level: what a regular array would have for its shape."""
    shape: list[int] = []
    while isinstance(values, list) and len(shape) <= _IMAGE + 1:
        shape.append(len(values))
        values = values[0] if values else None
    return tuple(shape)


def flat_numbers(values: Any, levels: int, where: str) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape of nested lists and their numbers, one after another.

    Raises:
        BadRequest: Where lists of a level are of unlike lengths, or hold something else than numbers.
    """
    shape: list[int] = []
    level: list[Any] = [values]
    while (kinds := set(map(type, level))) == {list}:
        lengths = set(map(len, level))
        if len(lengths) != 1:
            raise BadRequest(400, f"{where}: rows of unlike lengths")
        if len(shape) == levels:
            raise BadRequest(400, f"{where}: expected at most {levels} levels of lists")
        shape.append(lengths.pop())
        level = list(chain.from_iterable(level))
    if list in kinds:
        raise BadRequest(400, f"{where}: rows of unlike lengths")
    if not kinds <= _NUMBERS:
        raise BadRequest(400, f"{where}: expected numbers of 0 to 255")
    return tuple(shape), level


def picture_of_list(values: Any, where: str) -> NDArray[np.uint8]:
    """Return the picture of nested lists.

    Args:
        values: Rows of pixels of channels, whole numbers of 0 to 255.

    Returns:
        uint8 [H, W, 3].

    Raises:
        BadRequest: Where it is no picture.
    """
    shape, numbers = flat_numbers(values, _IMAGE, where)
    return picture_of_numbers(bytes_of(numbers, where), shape, where)


def picture_of_numbers(values: NDArray[np.uint8], shape: Sequence[int], where: str) -> NDArray[np.uint8]:
    """Return the picture of numbers that stand one after another.

    Args:
        values: uint8, flat.

    Returns:
        uint8 [H, W, 3].

    Raises:
        BadRequest: Where the shape is no picture's.
    """
    if len(shape) != _IMAGE or shape[2] not in _CHANNELS or values.size == 0:
        raise BadRequest(400, f"{where}: expected [height, width, 3], found shape {list(shape)}")
    picture = values.reshape(shape)
    return np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else np.ascontiguousarray(picture[..., :3])


def bytes_of(numbers: list[Any], where: str) -> NDArray[np.uint8]:
    """Return whole numbers of 0 to 255 as bytes.

    Returns:
        uint8, flat.
    """
    try:
        return np.frombuffer(bytes(numbers), np.uint8)
    except ValueError:
        raise BadRequest(400, f"{where}: expected numbers of 0 to 255") from None
    except TypeError:  # there are floats among them
        values = np.array(numbers, np.float64)
    if not (values.min() >= 0 and values.max() <= np.iinfo(np.uint8).max):
        raise BadRequest(400, f"{where}: expected numbers of 0 to 255")
    whole = values.astype(np.uint8)
    if not np.array_equal(whole, values):
        raise BadRequest(400, f"{where}: expected whole numbers of 0 to 255")
    return whole
