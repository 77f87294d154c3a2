"""Numbers in nested lists, validated before an array is made, so that memory is proportional to the input.

Dimensions: H W picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.inference.serving.requests import BadRequest

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


def picture_of_list(values: Any, where: str) -> NDArray[np.uint8]:
    """Return nested lists of rows of pixels of channels, in 0..255, as uint8 [H, W, 3]; BadRequest if invalid."""
    shape, numbers = flat_numbers(values, _IMAGE, where)
    return picture_of_numbers(bytes_of(numbers, where), shape, where)


def picture_of_numbers(values: NDArray[np.uint8], shape: Sequence[int], where: str) -> NDArray[np.uint8]:
    """Return flat uint8 values as a picture uint8 [H, W, 3]; BadRequest if `shape` is not a picture's."""
    if len(shape) != _IMAGE or shape[2] not in _CHANNELS or values.size == 0:
        raise BadRequest(400, f"{where}: expected [height, width, 3], found shape {list(shape)}")
    picture = values.reshape(shape)
    return np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else np.ascontiguousarray(picture[..., :3])


def bytes_of(numbers: list[Any], where: str) -> NDArray[np.uint8]:
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
