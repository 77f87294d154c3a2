"""Changing the colours of pixels, uint8 [H, W, 3].

TF's arithmetic is that of real numbers, rounded at the end; Caffe's is OpenCV's of 8 bits at each step.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import functional as F

__all__ = ["brighten", "saturate", "saturate_8_bits", "scale_levels", "stretch", "turn_hue", "turn_hue_8_bits"]

Pixels = NDArray[np.uint8]
# What depends on a pixel's own level alone is looked up: a tenth of the time of the arithmetic.
_LEVELS = np.arange(256, dtype=np.float32)
_HUE, _SATURATION = 0, 1


def _rounded(levels: NDArray[np.float32]) -> Pixels:
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)


def brighten(image: Pixels, delta: float) -> Pixels:
    """Return an image with so many levels added to each channel."""
    return _rounded(_LEVELS + np.float32(delta))[image]


def scale_levels(image: Pixels, factor: float) -> Pixels:
    """Return an image whose levels are multiplied: Caffe's contrast."""
    return _rounded(_LEVELS * np.float32(factor))[image]


def stretch(image: Pixels, factor: float) -> Pixels:
    """Return an image whose channels are stretched about their means: TF's contrast."""
    stretched = np.empty_like(image)
    for channel in range(image.shape[2]):
        pixels = image[..., channel]
        mean = np.float32(pixels.mean())
        stretched[..., channel] = _rounded((_LEVELS - mean) * np.float32(factor) + mean)[pixels]
    return stretched


def saturate(image: Pixels, factor: float) -> Pixels:
    """Return an image with the saturation of HSV multiplied."""
    value = image.max(-1, keepdims=True).astype(np.float32)
    chroma = value - image.min(-1, keepdims=True)
    # Saturation is chroma over value and ends at 1; the value itself stays.
    limit = np.divide(value, chroma, out=np.full_like(value, np.inf), where=chroma > 0)
    return _rounded(value - (value - image) * np.minimum(np.float32(factor), limit))


def turn_hue(image: Pixels, delta: float) -> Pixels:
    """Return an image with the hue of HSV turned by a share of the circle, -0.5 to 0.5."""
    pixels = F.adjust_hue(torch.from_numpy(image).permute(2, 0, 1), delta)
    return np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())


def saturate_8_bits(image: Pixels, factor: float) -> Pixels:
    """Return an image with OpenCV's saturation (0..255) multiplied."""
    return _in_hsv(image, _SATURATION, _rounded(_LEVELS * np.float32(factor)))


def turn_hue_8_bits(image: Pixels, delta: float) -> Pixels:
    """Return an image with so much added to OpenCV's hue (0..180)."""
    return _in_hsv(image, _HUE, _rounded(_LEVELS + np.float32(delta)))


def _in_hsv(image: Pixels, channel: int, table: Pixels) -> Pixels:
    """Look one channel of hue, saturation and value up in a table."""
    hsv = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2HSV)
    hsv[..., channel] = table[hsv[..., channel]]
    return np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB), np.uint8)
