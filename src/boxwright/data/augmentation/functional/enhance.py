"""The enhancements of AutoAugment's policies on uint8 [H, W, C]: Pillow's operations, as TF implements them.

One of TF's differs from Pillow's: `contrast` blends with H × W / 256 instead of the mean.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.data.augmentation.functional.pixels import GRAY_WEIGHTS

Levels = NDArray[np.uint8]
_SOLARIZED_BELOW = 128
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


def autocontrast(image: Levels) -> Levels:
    """Return an image with channels stretched to 0..255; constant channels stay."""
    low, high = image.min((0, 1)).astype(np.float32), image.max((0, 1)).astype(np.float32)
    scale = np.float32(255) / np.maximum(high - low, 1)
    stretched = np.clip(image * scale - low * scale, 0, 255).astype(np.uint8)
    return np.where(high > low, stretched, image)


def equalize(image: Levels) -> Levels:
    """Return an image with equalized histograms."""
    equal = np.empty_like(image)
    for channel in range(image.shape[2]):
        counts = np.bincount(image[..., channel].reshape(-1), minlength=256)
        # Pillow's rule: the last level that occurs does not count.
        step = (counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
        table = np.arange(256)
        if step:
            table = np.clip(np.concatenate([[0], ((np.cumsum(counts) + step // 2) // step)[:-1]]), 0, 255)
        equal[..., channel] = table.astype(np.uint8)[image[..., channel]]
    return equal


def posterize(image: Levels, bits: int) -> Levels:
    """Return an image with only the upper bits, at least one."""
    # Strength 2 gives 0 bits; TF's shift operators clamp the shift of 8 to 7, which keeps the highest bit.
    return image & np.uint8((0xFF << (8 - max(bits, 1))) & 0xFF)


def solarize(image: Levels, threshold: int) -> Levels:
    """Return an image with levels from a threshold on inverted; from 256 on all, as TF compares in 8 bits."""
    return np.where(image < threshold % 256, image, 255 - image)


def solarize_add(image: Levels, addition: int) -> Levels:
    """Return an image with levels below 128 raised."""
    raised = np.clip(image.astype(np.int64) + addition, 0, 255).astype(np.uint8)
    return np.where(image < _SOLARIZED_BELOW, raised, image)


def blend_with_gray(image: Levels, factor: float) -> Levels:
    """Return a blend of an image (1) with its luminance (0), extrapolated beyond: its color."""
    luminance = (image.astype(np.float32) / 255) @ GRAY_WEIGHTS
    gray = (luminance * np.float32(255.5)).astype(np.uint8)  # as TF casts shares of the range to levels
    return _blend(np.broadcast_to(gray[..., None], image.shape), image, factor)


def blend_with_flat(image: Levels, factor: float) -> Levels:
    """Return a blend of an image with a constant gray: its contrast."""
    flat = np.uint8(min(image.shape[0] * image.shape[1] / 256, 255))
    return _blend(np.full_like(image, flat), image, factor)


def blend_with_black(image: Levels, factor: float) -> Levels:
    """Return a blend of an image with black: its brightness."""
    return _blend(np.zeros_like(image), image, factor)


def blend_with_smooth(image: Levels, factor: float) -> Levels:
    """Return a blend of an image with its smoothed self: its sharpness. The outermost pixels stay."""
    smooth = image.copy()
    inner = np.asarray(cv2.filter2D(image.astype(np.float32), -1, _SMOOTH)).reshape(image.shape)[1:-1, 1:-1]
    smooth[1:-1, 1:-1] = np.clip(inner, 0, 255).astype(np.uint8)
    return _blend(smooth, image, factor)


def _blend(first: Levels, second: Levels, factor: float) -> Levels:
    """Interpolate or extrapolate from one image (0) to another (1); levels are truncated."""
    base = first.astype(np.float32)
    return np.clip(base + np.float32(factor) * (second - base), 0, 255).astype(np.uint8)
