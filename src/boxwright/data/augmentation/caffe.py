"""The augmentation of Caffe's SSD and RefineDet, step by step (SSD, section 3.2 and its released code).

In order: `CaffeDistort`, `RandomExpand`, `OverlapCrop`, `RandomInterpolationResize`, a horizontal flip. As in Caffe,
OpenCV computes all steps, and pixels are rounded to 8 bits between them.

Dimensions: H W image, N boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.data.augmentation.functional.geometry import pad, place
from boxwright.data.augmentation.functional.pixels import make_canvas, scale_levels, shift_levels
from boxwright.types import Sample

_INTERPOLATIONS = (cv2.INTER_LINEAR, cv2.INTER_AREA, cv2.INTER_NEAREST, cv2.INTER_CUBIC, cv2.INTER_LANCZOS4)
# `max_trials` of SSD's published batch samplers.
_TRIALS = 50
_Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class CaffeDistort:
    """Change brightness, contrast, saturation and hue, each at random; contrast comes second or last.

    Attributes:
        probability: The probability of each of the four.
        brightness: The maximum that is added to or subtracted from every level.
        saturation: (min, max) factor of the saturation, in 8 bits.
        hue: The maximum that is added to or subtracted from the hue, in units of 2°; the result is clipped at 0.
    """

    probability: float = 0.5
    brightness: float = 32.0
    contrast: tuple[float, float] = (0.5, 1.5)
    saturation: tuple[float, float] = (0.5, 1.5)
    hue: float = 18.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        changes: list[Callable[[_Pixels], _Pixels]] = [
            lambda image: shift_levels(image, rng.uniform(-self.brightness, self.brightness)),
            lambda image: scale_levels(image, rng.uniform(*self.contrast)),
            lambda image: _in_hsv(image, 1, scale_levels, rng.uniform(*self.saturation)),
            lambda image: _in_hsv(image, 0, shift_levels, rng.uniform(-self.hue, self.hue)),
        ]
        if rng.random() < 0.5:
            changes.append(changes.pop(1))
        image = sample.image
        for change in changes:
            if rng.random() < self.probability:
                image = change(image)
        return replace(sample, image=image)


def _in_hsv(image: _Pixels, channel: int, change: Callable[[_Pixels, float], _Pixels], by: float) -> _Pixels:
    """Return an image with its hue (channel 0, in 0..180) or saturation (1, in 0..255) changed."""
    hsv = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2HSV)
    levels = np.asarray(cv2.extractChannel(hsv, channel), np.uint8)
    return np.asarray(cv2.cvtColor(cv2.insertChannel(change(levels, by), hsv, channel), cv2.COLOR_HSV2RGB), np.uint8)


@dataclass(frozen=True)
class RandomExpand:
    """Place the image at random on a larger canvas of one color, which makes objects smaller.

    Attributes:
        color: Of the canvas, red, green and blue in 0..255.
    """

    probability: float = 0.5
    max_ratio: float = 4.0
    # The mean of ImageNet's channels that VGG subtracts, rounded: the canvas becomes about 0.
    color: tuple[int, int, int] = (123, 117, 104)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, expanded or unchanged."""
        # Caffe leaves an image that could hardly grow.
        if rng.random() >= self.probability or self.max_ratio - 1 < 0.01:
            return sample
        ratio = rng.uniform(1, self.max_ratio)
        height, width = sample.image.shape[:2]
        tall, wide = int(height * ratio), int(width * ratio)
        top, left = math.floor(rng.uniform(0, tall - height)), math.floor(rng.uniform(0, wide - width))
        return pad(sample, make_canvas((tall, wide), self.color, sample.image), (left, top))


@dataclass(frozen=True)
class OverlapCrop:
    """Crop to one of several windows, each of which overlaps some object enough.

    One window is searched for each overlap, in 50 trials; the whole image is one more. One of the windows is drawn
    uniformly. Objects whose center lies inside stay, clipped to it.

    Attributes:
        min_overlaps: Minimum intersection over union with some object, one per window; 0 for any window.
        scales: (min, max) scale of the window, in units of the image.
        aspect_ratios: (min, max) width over height in those units.
    """

    min_overlaps: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9, 0.0)
    scales: tuple[float, float] = (0.3, 1.0)
    aspect_ratios: tuple[float, float] = (0.5, 2.0)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, cropped or whole; whole if it has no objects."""
        if not len(sample.boxes):
            return sample
        height, width = sample.image.shape[:2]
        unit = np.array([width, height, width, height], np.float32)
        boxes = np.asarray(sample.boxes / unit, np.float32)
        trials = self._draw((len(self.min_overlaps), _TRIALS), rng)
        good = _overlaps(boxes, trials).max(-1) >= np.array(self.min_overlaps)[:, None]
        windows = [None, *(row[hit.argmax()] for row, hit in zip(trials, good, strict=True) if hit.any())]
        window = windows[int(rng.integers(len(windows)))]
        return sample if window is None else _cut(sample, boxes, window)

    def _draw(self, count: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float32]:
        """Draw windows, [*count, 4] in units of the image."""
        scale = rng.uniform(*self.scales, count)
        least, most = self.aspect_ratios
        # Bounded so that neither side, scale × √ratio or scale / √ratio, is longer than the image's.
        ratio = np.sqrt(rng.uniform(np.maximum(least, scale**2), np.minimum(most, 1 / scale**2)))
        sides = np.stack([scale * ratio, scale / ratio], -1)
        corners = rng.uniform(0, 1 - np.minimum(sides, 1))
        return np.asarray(np.clip(np.concatenate([corners, corners + sides], -1), 0, 1), np.float32)


def _overlaps(boxes: NDArray[np.float32], windows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the intersection over union of windows [..., 4] with each box [N, 4], [..., N]."""
    windows = windows[..., None, :]
    sides = np.minimum(boxes[:, 2:], windows[..., 2:]) - np.maximum(boxes[:, :2], windows[..., :2])
    inside = np.clip(sides, 0, None).prod(-1)
    areas = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(-1)
    return np.asarray(inside / (areas + (windows[..., 2:] - windows[..., :2]).prod(-1) - inside), np.float32)


def _cut(sample: Sample, boxes: NDArray[np.float32], window: NDArray[np.float32]) -> Sample:
    """Crop to a window in units of the image; its pixels are rounded to whole ones, its boxes are not."""
    height, width = sample.image.shape[:2]
    x, y = int(window[0] * width), int(window[1] * height)
    columns = max(int((window[2] - window[0]) * width), 1)
    rows = max(int((window[3] - window[1]) * height), 1)
    centers = (boxes[:, :2] + boxes[:, 2:]) / 2
    kept = sample.keep(np.asarray(((centers >= window[:2]) & (centers <= window[2:])).all(1)))
    image = np.ascontiguousarray(sample.image[y : y + rows, x : x + columns])
    # The scale takes pixels of the image to units of the window, and those to pixels of the crop.
    scale = np.array([columns, rows], np.float32) / ((window[2:] - window[:2]) * [width, height])
    moved = place(
        kept,
        image,
        masks=lambda old: old[:, y : y + rows, x : x + columns],
        scale=scale.astype(np.float32),
        shift=-window[:2] * np.array([width, height]) * scale,
    )
    limits = np.array([columns, rows] * 2, np.float32)
    moved = replace(moved, boxes=np.clip(moved.boxes, 0, limits))
    return moved.keep(np.asarray((moved.boxes[:, 2:] > moved.boxes[:, :2]).all(1)))


@dataclass(frozen=True)
class RandomInterpolationResize:
    """Resize to (height, width) with a random interpolation: linear, area, nearest, cubic, or Lanczos over 8×8."""

    size: tuple[int, int]

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample of that size."""
        height, width = self.size
        interpolation = _INTERPOLATIONS[int(rng.integers(len(_INTERPOLATIONS)))]
        image = np.asarray(cv2.resize(sample.image, (width, height), interpolation=interpolation), np.uint8)
        old_height, old_width = sample.image.shape[:2]
        scale = np.array([width / old_width, height / old_height], np.float32)

        def masks(old: NDArray[np.uint8]) -> NDArray[np.uint8]:
            resized = [cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST) for mask in old]
            return np.array(resized, np.uint8).reshape(-1, height, width)

        return place(sample, image, masks=masks, scale=scale)
