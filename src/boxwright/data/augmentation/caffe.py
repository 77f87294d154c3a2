"""The augmentation of Caffe's SSD and RefineDet, step by step (SSD, section 3.2 and its released code).

In order: `CaffeDistort`, `RandomExpand`, `OverlapCrop`, `RandomInterpolationResize`, a horizontal flip. As in Caffe,
OpenCV computes all steps, and pixels are rounded to 8 bits between them.

Dimensions: H W image, N boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.data.augmentation.functional.geometry import Window, pad, place
from boxwright.data.augmentation.functional.pixels import make_canvas, scale_levels, shift_levels
from boxwright.types import Sample

_INTERPOLATIONS = (cv2.INTER_LINEAR, cv2.INTER_AREA, cv2.INTER_NEAREST, cv2.INTER_CUBIC, cv2.INTER_LANCZOS4)
# `max_trials` of SSD's published batch samplers.
_TRIALS = 50
_Pixels = NDArray[np.uint8]
# OpenCV computes so many pixels together at most, and rounds those left over at the end of a row otherwise. In one row,
# filled up to a multiple, a pixel's colors do not depend on its place.
_TOGETHER = 64
# A function of an image and an amount, and the amount.
Change = tuple[Callable[[_Pixels, float], _Pixels], float]


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
        return replace(sample, image=change_levels(sample.image, self.draw(rng)))

    def draw(self, rng: np.random.Generator) -> list[Change]:
        """Draw the changes, in order; a pixel's new levels follow from its own alone."""
        kinds: list[tuple[Callable[[_Pixels, float], _Pixels], tuple[float, float]]] = [
            (shift_levels, (-self.brightness, self.brightness)),
            (scale_levels, self.contrast),
            (_scale_saturation, self.saturation),
            (_shift_hue, (-self.hue, self.hue)),
        ]
        if rng.random() < 0.5:
            kinds.append(kinds.pop(1))
        return [(kind, rng.uniform(*between)) for kind, between in kinds if rng.random() < self.probability]


def change_levels(image: _Pixels, changes: Sequence[Change]) -> _Pixels:
    """Return an image with changes that `CaffeDistort` drew."""
    for change, by in changes:
        image = change(image, by)
    return image


def _scale_saturation(image: _Pixels, factor: float) -> _Pixels:
    return _in_hsv(image, 1, scale_levels, factor)


def _shift_hue(image: _Pixels, delta: float) -> _Pixels:
    return _in_hsv(image, 0, shift_levels, delta)


def _in_hsv(image: _Pixels, channel: int, change: Callable[[_Pixels, float], _Pixels], by: float) -> _Pixels:
    """Return an image with its hue (channel 0, in 0..180) or saturation (1, in 0..255) changed."""
    count = image.shape[0] * image.shape[1]
    row = np.zeros((1, -(-count // _TOGETHER) * _TOGETHER, image.shape[2]), image.dtype)
    row[0, :count] = image.reshape(count, -1)
    hsv = cv2.cvtColor(row, cv2.COLOR_RGB2HSV)
    levels: Any = cv2.extractChannel(hsv, channel)
    changed: Any = cv2.cvtColor(cv2.insertChannel(change(levels, by), hsv, channel), cv2.COLOR_HSV2RGB)
    return np.asarray(changed[0, :count].reshape(*image.shape[:2], -1))


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
        drawn = self.draw(sample.image.shape[:2], rng)
        if drawn is None:
            return sample
        size, corner = drawn
        return pad(sample, make_canvas(size, self.color, sample.image), corner)

    def draw(self, size: tuple[int, ...], rng: np.random.Generator) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Draw the canvas's (height, width), and where on it (left, top) the image is placed; None for no canvas.

        Args:
            size: The image's (height, width).
        """
        # Caffe leaves an image that could hardly grow.
        if rng.random() >= self.probability or self.max_ratio - 1 < 0.01:
            return None
        ratio = rng.uniform(1, self.max_ratio)
        height, width = size
        tall, wide = int(height * ratio), int(width * ratio)
        top, left = math.floor(rng.uniform(0, tall - height)), math.floor(rng.uniform(0, wide - width))
        return (tall, wide), (left, top)


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
        window = self.draw(sample, rng)
        return sample if window is None else cut_window(sample, window)

    def draw(self, sample: Sample, rng: np.random.Generator) -> NDArray[np.float32] | None:
        """Draw a window, [4] in units of the image; None for the whole image. Pixels are not looked at."""
        if not len(sample.boxes):
            return None
        trials = self._draw_windows((len(self.min_overlaps), _TRIALS), rng)
        good = _overlaps(_in_units(sample), trials).max(-1) >= np.array(self.min_overlaps)[:, None]
        windows = [None, *(row[hit.argmax()] for row, hit in zip(trials, good, strict=True) if hit.any())]
        chosen: NDArray[np.float32] | None = windows[int(rng.integers(len(windows)))]
        return chosen

    def _draw_windows(self, count: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float32]:
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
    inside = _areas(np.maximum(boxes[:, :2], windows[..., :2]), np.minimum(boxes[:, 2:], windows[..., 2:]))
    areas = _areas(boxes[:, :2], boxes[:, 2:]) + _areas(windows[..., :2], windows[..., 2:])
    return np.asarray(inside / (areas - inside), np.float32)


def _areas(low: NDArray[np.float32], high: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the areas [...] between corners [..., 2]; 0 where they are exchanged."""
    sides = np.maximum(high - low, 0)
    return np.asarray(sides[..., 0] * sides[..., 1], np.float32)  # `prod` takes five times as long


def _in_units(sample: Sample) -> NDArray[np.float32]:
    """Return a sample's boxes in units of its image."""
    height, width = sample.image.shape[:2]
    return np.asarray(sample.boxes / np.array([width, height] * 2, np.float32), np.float32)


def whole_pixels(window: NDArray[np.float32], height: int, width: int) -> Window:
    """Return the pixels of a window in units of the image."""
    x, y = int(window[0] * width), int(window[1] * height)
    columns = max(int((window[2] - window[0]) * width), 1)
    rows = max(int((window[3] - window[1]) * height), 1)
    return x, y, x + columns, y + rows


def cut_window(sample: Sample, window: NDArray[np.float32]) -> Sample:
    """Crop to a window in units of the image; its pixels are rounded to whole ones, its boxes are not."""
    height, width = sample.image.shape[:2]
    left, top, right, bottom = whole_pixels(window, height, width)
    columns, rows = right - left, bottom - top
    boxes = _in_units(sample)
    centers = (boxes[:, :2] + boxes[:, 2:]) / 2
    kept = sample.keep(np.asarray(((centers >= window[:2]) & (centers <= window[2:])).all(1)))
    image = np.ascontiguousarray(sample.image[top:bottom, left:right])
    # The scale takes pixels of the image to units of the window, and those to pixels of the crop.
    scale = np.array([columns, rows], np.float32) / ((window[2:] - window[:2]) * [width, height])
    moved = place(
        kept,
        image,
        masks=lambda old: old[:, top:bottom, left:right],
        scale=scale.astype(np.float32),
        shift=-window[:2] * np.array([width, height]) * scale,
    )
    limits = np.array([columns, rows] * 2, np.float32)
    moved.boxes = np.clip(moved.boxes, 0, limits)
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
