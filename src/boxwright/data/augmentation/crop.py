"""Random crops: one that keeps enough of some object, and SSD's choice among several such.

Dimensions: N boxes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boxwright.data.augmentation.functional.geometry import Window, cut
from boxwright.types import Sample

__all__ = ["SSD_CROPS", "RandomCrop", "SsdRandomCrop"]

_ATTEMPTS = 100


@dataclass(frozen=True)
class RandomCrop:
    """Crop a window of random size and shape (TF's `random_crop_image`).

    Up to 100 windows are drawn; the first that covers `min_object_covered` of at least one box is
    taken, else the whole image. Boxes that lie outside, or of which less than `overlap_threshold`
    lies inside, are dropped.

    Attributes:
        min_object_covered: The share of some box that must lie inside.
        aspect_ratios: (least, most) width over height.
        areas: (least, most) share of the image's area.
        overlap_threshold: The share of a box that must lie inside for it to stay.
        clip_boxes: Whether the boxes that stay are clipped to the window.
        keep_probability: How often the image stays whole.
    """

    min_object_covered: float = 1.0
    aspect_ratios: tuple[float, float] = (0.75, 1.33)
    areas: tuple[float, float] = (0.1, 1.0)
    overlap_threshold: float = 0.3
    clip_boxes: bool = True
    keep_probability: float = 0.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, cropped or whole."""
        if rng.random() < self.keep_probability:
            return sample
        height, width = sample.image.shape[:2]
        for _ in range(_ATTEMPTS):
            window = self._draw(height, width, rng)
            if window is not None and self._covers(window, sample.boxes, height, width):
                return crop(sample, window, self.overlap_threshold, clip_boxes=self.clip_boxes)
        return crop(sample, (0, 0, width, height), self.overlap_threshold, clip_boxes=self.clip_boxes)

    def _draw(self, height: int, width: int, rng: np.random.Generator) -> Window | None:
        ratio = rng.uniform(*self.aspect_ratios)
        least, most = (math.sqrt(share * height * width / ratio) for share in self.areas)
        most = min(most, height, width / ratio)
        if round(most) < round(least) or round(most) < 1:
            return None
        window_height = min(int(rng.integers(max(round(least), 1), round(most) + 1)), height)
        window_width = min(max(round(window_height * ratio), 1), width)
        y, x = int(rng.integers(0, height - window_height + 1)), int(rng.integers(0, width - window_width + 1))
        return x, y, x + window_width, y + window_height

    def _covers(self, window: Window, boxes: NDArray[np.float32], height: int, width: int) -> bool:
        if not len(boxes):  # TF then takes the whole image as the one object
            boxes = np.array([[0, 0, width, height]], np.float32)
        return bool((_share_inside(boxes, window) >= self.min_object_covered).any())


# SSD's own crops (SSD, section 2.2, "Data augmentation"), as TF has them when none are listed.
SSD_CROPS = tuple(
    RandomCrop(share, (0.5, 2.0), (0.1, 1.0), share, clip_boxes=True, keep_probability=0.15)
    for share in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
)


@dataclass(frozen=True)
class SsdRandomCrop:
    """One of several crops, each as likely.

    Attributes:
        crops: The crops.
    """

    crops: Sequence[RandomCrop] = SSD_CROPS

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, cropped or whole."""
        return self.crops[int(rng.integers(len(self.crops)))](sample, rng)


def crop(sample: Sample, window: Window, overlap_threshold: float, *, clip_boxes: bool) -> Sample:
    """Cut a window out of a sample.

    Args:
        sample: The sample.
        window: x_min, y_min, x_max, y_max in pixels, inside the image.
        overlap_threshold: The share of a box that must lie inside for it to stay.
        clip_boxes: Whether boxes are clipped to the window.

    Returns:
        A new sample.
    """
    x_min, y_min, x_max, y_max = window
    if window == (0, 0, sample.image.shape[1], sample.image.shape[0]) and not clip_boxes:
        return sample
    share = _share_inside(sample.boxes, window)
    inside = cut(sample.keep((share > 0) & (share >= overlap_threshold)), window)
    if not clip_boxes:
        return inside
    limits = np.array([x_max - x_min, y_max - y_min] * 2, np.float32)
    return replace(inside, boxes=np.clip(inside.boxes, 0, limits))


def _share_inside(boxes: NDArray[np.float32], window: Window) -> NDArray[np.float32]:
    """Compute the share of each box's area that lies in a window; 0 for a box without area."""
    low = np.maximum(boxes[:, :2], window[:2])
    high = np.minimum(boxes[:, 2:], window[2:])
    inside = np.clip(high - low, 0, None).prod(1)
    whole = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(1)
    return np.asarray(np.divide(inside, whole, out=np.zeros_like(inside), where=whole > 0), np.float32)
