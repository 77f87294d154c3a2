"""Color changes of pixels, [H, W, C], uint8 or float32 in 0..255.

TF computes in real numbers, rounded at the end for uint8; Caffe uses OpenCV's 8-bit arithmetic at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.data.augmentation.functional.pixels import LARGEST, Pixels, as_float, by_level, like

_HUE, _SATURATION = 0, 1
GRAY_WEIGHTS = np.array([0.2989, 0.5870, 0.1140], np.float32)  # tf.image.rgb_to_grayscale
_COLORS = 3


def brighten(image: Pixels, delta: float) -> Pixels:
    """Return an image with `delta` added to each channel."""
    return by_level(image, lambda levels: levels + np.float32(delta))


def scale_levels(image: Pixels, factor: float) -> Pixels:
    """Return an image with levels multiplied: Caffe's contrast."""
    return by_level(image, lambda levels: levels * np.float32(factor))


def multiply_pixels(image: Pixels, factors: NDArray[np.float32]) -> Pixels:
    """Return an image with each value multiplied by its own factor [H, W, C]."""
    return like(image, image * factors)


def adjust_gamma(image: Pixels, gamma: float, gain: float) -> Pixels:
    """Return an image of `gain × level ** gamma`, with levels in 0..1."""

    def change(levels: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(gain * np.power(levels / LARGEST, np.float32(gamma)) * LARGEST, np.float32)

    return by_level(image, change)


def map_range(image: Pixels, source: tuple[float, float], target: tuple[float, float]) -> NDArray[np.float32]:
    """Return a float32 image with levels mapped linearly from `source` to `target`."""
    scale = (target[1] - target[0]) / (source[1] - source[0])
    return np.asarray((as_float(image) - np.float32(source[0])) * np.float32(scale) + np.float32(target[0]), np.float32)


def subtract_channels(image: Pixels, means: Sequence[float]) -> NDArray[np.float32]:
    """Return a float32 image with one mean subtracted from each channel."""
    return as_float(image) - np.asarray(means, np.float32)


def gray(image: Pixels) -> Pixels:
    """Return an image whose colors are its luminance; other channels, as of alpha or of a gray image, stay."""
    if image.shape[2] < _COLORS:
        return image
    luminance = as_float(image[..., :_COLORS]) @ GRAY_WEIGHTS
    return _with_colors(image, np.repeat(like(image, luminance)[..., None], _COLORS, axis=-1))


def stretch(image: Pixels, factor: float) -> Pixels:
    """Return an image with channels scaled about their means: TF's contrast."""
    # Each channel has its own mean, and so its own table of levels.
    stretched = np.empty_like(image)
    for channel in range(image.shape[2]):
        mean = np.float32(image[..., channel].mean())
        stretched[..., channel] = by_level(image[..., channel], _stretched(mean, factor))
    return stretched


def _stretched(mean: np.float32, factor: float) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    return lambda levels: (levels - mean) * np.float32(factor) + mean


def saturate(image: Pixels, factor: float) -> Pixels:
    """Return an image with the saturation of HSV multiplied."""
    colors = image[..., :_COLORS]
    value = colors.max(-1, keepdims=True).astype(np.float32)
    chroma = value - colors.min(-1, keepdims=True)
    # Saturation is chroma over value, at most 1; the value itself stays.
    limit = np.divide(value, chroma, out=np.full_like(value, np.inf), where=chroma > 0)
    return _with_colors(image, like(image, value - (value - colors) * np.minimum(np.float32(factor), limit)))


def turn_hue(image: Pixels, delta: float) -> Pixels:
    """Return an image with the hue of HSV rotated by a share of the circle, -0.5 to 0.5."""
    from torchvision.transforms.v2 import functional as F  # its import takes a second

    # torchvision expects floats in 0..1, and 8 bits as they are.
    colors = image[..., :_COLORS] if image.dtype == np.uint8 else image[..., :_COLORS] / LARGEST
    pixels = F.adjust_hue(torch.from_numpy(np.ascontiguousarray(colors)).permute(2, 0, 1), delta)
    turned = pixels.permute(1, 2, 0).numpy()
    return _with_colors(image, np.ascontiguousarray(turned if image.dtype == np.uint8 else turned * LARGEST))


def _with_colors(image: Pixels, colors: Pixels) -> Pixels:
    """Replace the colors of an image, which may have further channels."""
    return colors if image.shape[2] == _COLORS else np.concatenate([colors, image[..., _COLORS:]], axis=-1)


def saturate_8_bits(image: NDArray[np.uint8], factor: float) -> NDArray[np.uint8]:
    """Return an image with OpenCV's saturation (0..255) multiplied."""
    return _in_hsv(image, _SATURATION, lambda levels: levels * np.float32(factor))


def turn_hue_8_bits(image: NDArray[np.uint8], delta: float) -> NDArray[np.uint8]:
    """Return an image with `delta` added to OpenCV's hue (0..180)."""
    return _in_hsv(image, _HUE, lambda levels: levels + np.float32(delta))


def _in_hsv(
    image: NDArray[np.uint8], channel: int, change: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> NDArray[np.uint8]:
    """Change one channel of hue, saturation and value."""
    hsv = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2HSV)
    hsv[..., channel] = by_level(hsv[..., channel], change)
    return np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB), np.uint8)
