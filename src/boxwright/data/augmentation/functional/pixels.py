"""Levels of pixels: uint8 while they are whole numbers in 0..255, float32 once a step has left them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# uint8 or float32.
Pixels = NDArray[Any]
LARGEST = np.float32(255)
_LEVELS = np.arange(256, dtype=np.float32)


def like(image: Pixels, values: NDArray[np.float32]) -> Pixels:
    """Return values of 0..255 as pixels of an image's type: clipped, and rounded for uint8."""
    clipped = np.clip(values if image.dtype != np.uint8 else np.rint(values), 0, LARGEST)
    return clipped.astype(image.dtype)


def by_level(image: Pixels, change: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Pixels:
    """Return an image with every level changed by itself, within 0..255.

    uint8 is looked up in a table of the 256 changed levels: a tenth of the time of the arithmetic.
    """
    if image.dtype != np.uint8:
        return like(image, change(image))
    return np.asarray(like(image, change(_LEVELS))[image])


def as_float(image: Pixels) -> NDArray[np.float32]:
    """Return pixels as float32."""
    return image.astype(np.float32, copy=False)


def as_levels(image: Pixels) -> NDArray[np.uint8]:
    """Return pixels as uint8, fractions cut off, as TF casts."""
    return image if image.dtype == np.uint8 else np.clip(image, 0, 255).astype(np.uint8)


def canvas_of(size: tuple[int, int], color: Any, like_image: Pixels) -> Pixels:
    """Return an image of one color, of the channels and type of another.

    Args:
        color: A level, or one a channel.

    Returns:
        [height, width, C].
    """
    canvas = np.empty((*size, like_image.shape[2]), like_image.dtype)
    canvas[:1] = color
    canvas[1:] = canvas[:1]  # whole rows are copied at once, colors pixel by pixel
    return canvas
