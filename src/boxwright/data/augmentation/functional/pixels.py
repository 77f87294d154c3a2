"""Pixel levels: uint8 as long as they are integers in 0..255, float32 afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

# uint8 or float32.
Pixels = NDArray[Any]
LARGEST = np.float32(255)
GRAY_WEIGHTS = np.array([0.2989, 0.5870, 0.1140], np.float32)  # tf.image.rgb_to_grayscale
_LEVELS = np.arange(256, dtype=np.float32)


def like(image: Pixels, values: NDArray[np.float32]) -> Pixels:
    """Return values in 0..255 as pixels of an image's data type: clipped, and rounded for uint8."""
    clipped = np.clip(values if image.dtype != np.uint8 else np.rint(values), 0, LARGEST)
    return clipped.astype(image.dtype)


def by_level(image: Pixels, change: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Pixels:
    """Return an image with a function applied to every level, clipped to 0..255.

    uint8 uses a lookup table of 256 levels: OpenCV's, as NumPy's indexing takes four times as long.
    """
    if image.dtype != np.uint8:
        return like(image, change(image))
    return np.asarray(cv2.LUT(image, like(image, change(_LEVELS))), np.uint8).reshape(image.shape)


def shift_levels(image: Pixels, delta: float) -> Pixels:
    """Return an image with `delta` added to each level; to uint8 it is added rounded, in a sixth of a table's time."""
    if image.dtype != np.uint8:
        return like(image, image + np.float32(delta))
    # Whole and positive: for other numbers OpenCV converts pixels.
    levels, amount = image.reshape(1, -1), np.array([abs(round(delta)), 0, 0, 0], np.float64)
    shifted = cv2.add(levels, amount) if delta >= 0 else cv2.subtract(levels, amount)
    return np.asarray(shifted, np.uint8).reshape(image.shape)


def scale_levels(image: Pixels, factor: float) -> Pixels:
    """Return an image with each level multiplied by a factor of at least 0."""
    if image.dtype != np.uint8:
        return like(image, image * np.float32(factor))
    levels = cv2.convertScaleAbs(image.reshape(1, -1), alpha=float(np.float32(factor)))
    return np.asarray(levels, np.uint8).reshape(image.shape)


def as_float(image: Pixels) -> NDArray[np.float32]:
    """Return pixels as float32."""
    return image.astype(np.float32, copy=False)


def as_levels(image: Pixels) -> NDArray[np.uint8]:
    """Return pixels as uint8, truncated, as TF casts."""
    return image if image.dtype == np.uint8 else np.clip(image, 0, 255).astype(np.uint8)


def make_canvas(size: tuple[int, int], color: Any, like_image: Pixels) -> Pixels:
    """Return an image of one color, with the channels and data type of another, [height, width, C].

    Args:
        color: One level, or one per channel.
    """
    canvas = np.empty((*size, like_image.shape[2]), like_image.dtype)
    canvas[:1] = color
    canvas[1:] = canvas[:1]  # rows copy at once, colors pixel by pixel
    return canvas
