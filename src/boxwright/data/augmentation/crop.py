"""Random crops: windows, tiles of large images, and squares that scale faces to a detector's anchors (SRN).

Dimensions: N boxes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boxwright.data.augmentation.functional.geometry import Window, cut, pad, resize
from boxwright.data.augmentation.functional.pixels import make_canvas
from boxwright.nn.ops.resize import resize_antialiased
from boxwright.types import Sample

_ATTEMPTS = 100
# TF's sampler of crops has it, too: it absorbs rounding errors of window sizes.
_EPSILON = 1e-7


@dataclass(frozen=True)
class RandomCrop:
    """Crop a window of random size and shape (TF's `random_crop_image`).

    Up to 100 windows are drawn; the first that covers `min_object_covered` of at least one box is used, otherwise the
    whole image. Boxes outside, or of which less than `overlap_threshold` lies inside, are dropped.

    Attributes:
        min_object_covered: The share of some box that must lie inside.
        areas: (min, max) share of the image's area.
        overlap_threshold: The share of a box that must lie inside for it to stay.
        clip_boxes: Whether the boxes that stay are clipped to the window, and their keypoints outside it hidden.
        keep_probability: The probability that the image stays whole.
    """

    min_object_covered: float = 1.0
    aspect_ratios: tuple[float, float] = (0.75, 1.33)
    areas: tuple[float, float] = (0.1, 1.0)
    overlap_threshold: float = 0.3
    clip_boxes: bool = True
    keep_probability: float = 0.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, cropped or whole."""
        if self.keep_probability > 0 and rng.random() <= self.keep_probability:
            return sample
        height, width = sample.image.shape[:2]
        whole = (0, 0, width, height)
        objects = np.clip(sample.boxes, 0, whole[2:] * 2).astype(np.int64)
        if not len(objects):  # TF then treats the whole image as an object
            objects = np.array([whole])
        for _ in range(_ATTEMPTS):
            window = self._draw(height, width, rng)
            if window is not None and self._covers(window, objects):
                break
        else:
            window = whole
        return crop(
            sample, window, overlapping(sample.boxes, window, self.overlap_threshold), clip_boxes=self.clip_boxes
        )

    def _draw(self, height: int, width: int, rng: np.random.Generator) -> Window | None:
        """Draw a window as TF's `sample_distorted_bounding_box`: it never reaches the lower right border."""
        ratio = rng.uniform(*self.aspect_ratios)
        least, most = (share * height * width for share in self.areas)
        shortest, tallest = round(math.sqrt(least / ratio)), round(math.sqrt(most / ratio))
        if round(tallest * ratio) > width:
            tallest = int((width + 0.5 - _EPSILON) / ratio)
            tallest -= round(tallest * ratio) > width
        tallest = min(tallest, height)
        tall = int(rng.integers(min(shortest, tallest), tallest + 1))
        wide = round(tall * ratio)
        if wide * tall < least:  # by rounding
            tall += 1
            wide = round(tall * ratio)
        if wide * tall > most:
            tall -= 1
            wide = round(tall * ratio)
        if not (least <= wide * tall <= most and 0 < wide <= width and 0 < tall <= height):
            return None
        y = int(rng.integers(0, height - tall)) if tall < height else 0
        x = int(rng.integers(0, width - wide)) if wide < width else 0
        return x, y, x + wide, y + tall

    def _covers(self, window: Window, objects: NDArray[np.int64]) -> bool:
        """Return whether a window covers enough of some object of at least a pixel."""
        low, high = np.maximum(objects[:, :2], window[:2]), np.minimum(objects[:, 2:], window[2:])
        inside = np.clip(high - low, 0, None).prod(1)
        areas = np.clip(objects[:, 2:] - objects[:, :2], 0, None).prod(1)
        shares = inside[areas > 0].astype(np.float32) / areas[areas > 0].astype(np.float32)
        return bool((shares >= np.float32(self.min_object_covered)).any())


# SSD's own crops (SSD, section 2.2, "Data augmentation"), which are TF's default.
SSD_CROPS = tuple(
    RandomCrop(share, (0.5, 2.0), (0.1, 1.0), share, clip_boxes=True, keep_probability=0.15)
    for share in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
)


@dataclass(frozen=True)
class RandomCropToAspectRatio:
    """Crop the largest window of an aspect ratio, at a random position.

    Attributes:
        overlap_threshold: The share of a box that must lie inside for it to stay.
        clip_boxes: Whether the boxes that stay are clipped to the window, and their keypoints outside it hidden.
    """

    aspect_ratio: float = 1.0
    overlap_threshold: float = 0.3
    clip_boxes: bool = True

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample, cropped."""
        height, width = sample.image.shape[:2]
        wider = width / height >= self.aspect_ratio
        tall = height if wider else min(max(round(width / self.aspect_ratio), 1), height)
        wide = min(max(round(height * self.aspect_ratio), 1), width) if wider else width
        y, x = int(rng.integers(0, height - tall + 1)), int(rng.integers(0, width - wide + 1))
        window = (x, y, x + wide, y + tall)
        return crop(
            sample, window, overlapping(sample.boxes, window, self.overlap_threshold), clip_boxes=self.clip_boxes
        )


@dataclass(frozen=True)
class RandomSquareCrop:
    """Crop a square about a random center, padded with black outside the image (CenterNet's).

    Attributes:
        max_border: The distance of centers from the image's border; halved until it fits.
        scales: (min, max) side in units of the longer side of the image.
    """

    max_border: int = 128
    scales: tuple[float, float] = (0.6, 1.3)
    count: int = 8

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the cropped sample; boxes are clipped, those entirely outside are dropped."""
        height, width = sample.image.shape[:2]
        least, most = (np.float32(scale) for scale in self.scales)
        # TF computes this in float32, which decides to which whole pixels sides are truncated.
        scale = least + (most - least) / np.float32(max(self.count - 1, 1)) * np.float32(rng.integers(0, self.count))
        side = max(int(scale * np.float32(max(height, width))), 2)
        top, left = (self._center(length, rng) - side // 2 for length in (height, width))
        # TF drops the last row and column of the image, and of an odd square.
        right, bottom = min(left + side // 2 * 2, width - 1), min(top + side // 2 * 2, height - 1)
        window = (max(left, 0), max(top, 0), max(right, left, 0), max(bottom, top, 0))
        frame = (left, top, left + side, top + side)
        inside = crop(sample, window, touching(sample.boxes, frame), clip_boxes=False)
        canvas = np.zeros((side, side, sample.image.shape[2]), sample.image.dtype)
        placed = pad(inside, canvas, (window[0] - left, window[1] - top))
        return replace(placed, boxes=np.clip(placed.boxes, 0, np.float32(side)))

    def _center(self, side: int, rng: np.random.Generator) -> int:
        halvings = math.ceil(math.log2(max(2 * self.max_border / side, 1)))
        border = self.max_border >> halvings
        return int(rng.integers(border, side - border + 1))


def crop(sample: Sample, window: Window, kept: NDArray[np.bool_], *, clip_boxes: bool) -> Sample:
    """Return a window of a sample.

    Args:
        window: x_min, y_min, x_max, y_max in pixels, inside the image.
        kept: bool [N]; the objects that stay.
        clip_boxes: Whether boxes are clipped to the window, and points outside it are hidden; otherwise both stay as
            they are, as in TF.
    """
    x_min, y_min, x_max, y_max = window
    chosen = sample.keep(kept)
    inside = cut(chosen, window)
    if not clip_boxes:
        shift = np.array([-x_min, -y_min, 0], np.float32)
        shown = chosen.moved(inside.image, points=lambda old: old + shift)
        return replace(inside, keypoints=shown.keypoints, dense_pose=shown.dense_pose)
    limits = np.array([x_max - x_min, y_max - y_min] * 2, np.float32)
    return replace(inside, boxes=np.clip(inside.boxes, 0, limits))


def touching(boxes: NDArray[np.float32], window: Window) -> NDArray[np.bool_]:
    """Return which boxes [N, 4] are not entirely outside a window."""
    return np.asarray(((boxes[:, :2] < window[2:]) & (boxes[:, 2:] > window[:2])).all(1))


def overlapping(boxes: NDArray[np.float32], window: Window, threshold: float) -> NDArray[np.bool_]:
    """Return which boxes [N, 4] have a positive share of at least `threshold` of their area in a window."""
    share = _share_inside(boxes, window)
    return np.asarray((share > 0) & (share >= np.float32(threshold)))


def _share_inside(boxes: NDArray[np.float32], window: Window) -> NDArray[np.float32]:
    """Return the share of each box's area that lies in a window; 0 for a box without area."""
    edges = np.array(window, np.float32)
    low, high = np.maximum(boxes[:, :2], edges[:2]), np.minimum(boxes[:, 2:], edges[2:])
    inside = np.clip(high - low, 0, None).prod(1)
    whole = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(1)
    return np.asarray(np.divide(inside, whole, out=np.zeros_like(inside), where=whole > 0), np.float32)


@dataclass(frozen=True)
class RandomTile:
    """Crop a tile of fixed size, around the center of some object or anywhere.

    Attributes:
        size: (height, width); an image that is smaller along a side keeps that side.
        object_probability: The probability that the tile contains the center of an object, if there is one.
        min_visible: The share of a box that must be visible for it to stay.
    """

    size: tuple[int, int] = (640, 640)
    object_probability: float = 0.75
    min_visible: float = 0.3

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the tile; boxes are clipped to it."""
        sides = sample.image.shape[:2]
        tile = [min(length, side) for length, side in zip(self.size, sides, strict=True)]
        around = None
        if rng.random() < self.object_probability and len(sample.boxes):
            box = sample.boxes[int(rng.integers(0, len(sample.boxes)))]
            around = (float(box[1] + box[3]) / 2, float(box[0] + box[2]) / 2)
        starts = []
        for axis in (0, 1):
            least, most = 0, sides[axis] - tile[axis]
            if around is not None:  # the tile ends behind the center, and begins before it
                center = min(max(int(around[axis]), 0), sides[axis] - 1)
                least, most = max(least, center + 1 - tile[axis]), min(most, center)
            starts.append(int(rng.integers(least, most + 1)))
        top, left = starts
        window: Window = (left, top, left + tile[1], top + tile[0])
        return crop(sample, window, overlapping(sample.boxes, window, self.min_visible), clip_boxes=True)


@dataclass(frozen=True)
class DataAnchorSampling:
    """Scale so that some object gets a random anchor's size, and crop a square around it (Tang et al., 2018, 3.4).

    The anchor is drawn among those up to one size above the closest to the object, the object's new size between half
    and twice the anchor's. This turns large objects into small ones, which are too rare.
    """

    size: int = 640
    scales: tuple[float, ...] = (16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
    color: tuple[float, ...] = (114.0,)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a square; objects whose center lies inside stay, clipped.

        Crowds are not chosen. An image without objects is padded to a square.
        """
        sides = (sample.boxes[:, 2:] - sample.boxes[:, :2]).astype(np.float64)
        usable = np.flatnonzero((sides > 0).all(1) & ~sample.is_crowd)
        if not len(usable):
            return _square(sample, max(sample.image.shape[:2]), (0, 0), self.size, self.color)
        chosen = int(rng.choice(usable))
        own = float(np.sqrt(sides[chosen].prod()))
        nearest = int(np.abs(np.array(self.scales) - own).argmin())
        anchor = self.scales[int(rng.integers(0, min(nearest + 1, len(self.scales) - 1) + 1))]
        window = max(round(self.size * own / rng.uniform(anchor / 2, anchor * 2)), 1)
        box, (height, width) = sample.boxes[chosen].astype(np.float64), sample.image.shape[:2]
        corner = tuple(
            _draw_start(box[axis], box[axis + 2], window, side, rng) for axis, side in ((0, width), (1, height))
        )
        return _square(sample, window, (corner[0], corner[1]), self.size, self.color)


@dataclass(frozen=True)
class RandomSizeCrop:
    """Resize the shorter side to one of several lengths, and crop a square of a random side (DETR, RF-DETR).

    Attributes:
        shorter_sides: The lengths, in pixels.
        sides: (min, max) side of the square, in pixels; the shorter side where that is smaller.
    """

    probability: float = 0.5
    shorter_sides: tuple[int, ...] = (400, 500, 600)
    sides: tuple[int, int] = (384, 600)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the square, or the sample unchanged; boxes are clipped, those entirely outside are dropped."""
        if rng.random() < 1 - self.probability:
            return sample
        shorter = min(sample.image.shape[:2])
        target = self.shorter_sides[int(rng.integers(0, len(self.shorter_sides)))]
        # The longer side is cut off to whole pixels, as torchvision does.
        height, width = (target * side // shorter for side in sample.image.shape[:2])
        resized = resize(sample, height, width, resize_antialiased)
        least, most = (min(side, target) for side in self.sides)
        side = int(rng.integers(least, most + 1))
        y, x = int(rng.integers(0, height - side + 1)), int(rng.integers(0, width - side + 1))
        window = (x, y, x + side, y + side)
        return crop(resized, window, touching(resized.boxes, window), clip_boxes=True)


@dataclass(frozen=True)
class RandomSquarePatch:
    """Crop a square as large as the shorter side, or smaller, and resize it (SRN, section 3.5).

    Attributes:
        sides: (min, max) side of a smaller square, in units of the image's shorter side; every other crop is as large
            as the shorter side.
    """

    size: int = 1024
    sides: tuple[float, float] = (0.5, 1.0)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a square; objects whose center lies inside stay, clipped."""
        height, width = sample.image.shape[:2]
        share = 1.0 if rng.random() < 1 / 2 else rng.uniform(*self.sides)
        side = max(round(min(height, width) * share), 1)
        corner = (int(rng.integers(0, width - side + 1)), int(rng.integers(0, height - side + 1)))
        return _square(sample, side, corner, self.size, ())


def _draw_start(low: float, high: float, window: int, side: int, rng: np.random.Generator) -> int:
    """Draw where a window starts along an axis, such that it contains the object and stays in the image if possible."""
    least, most = sorted((int(np.ceil(high)) - window, int(np.floor(low))))
    inner = sorted((0, side - window))
    if max(least, inner[0]) <= min(most, inner[1]):
        least, most = max(least, inner[0]), min(most, inner[1])
    return int(rng.integers(least, most + 1))


def _square(sample: Sample, side: int, corner: tuple[int, int], size: int, color: tuple[float, ...]) -> Sample:
    """Return the square at (left, top), which may reach far beyond the image, resized."""
    height, width = sample.image.shape[:2]
    left, top = corner
    shown: Window = (max(left, 0), max(top, 0), min(left + side, width), min(top + side, height))
    if shown[0] >= shown[2] or shown[1] >= shown[3]:  # a box far outside its image
        return _square(sample, max(height, width), (0, 0), size, color or (114.0,))
    inside = crop(sample, shown, _centered(sample.boxes, shown), clip_boxes=True)
    # Resize before padding: a square around a large face is many times the image.
    starts = [round((low - edge) * size / side) for low, edge in ((shown[0], left), (shown[1], top))]
    ends = [round((high - edge) * size / side) for high, edge in ((shown[2], left), (shown[3], top))]
    wide, tall = (max(end - start, 1) for start, end in zip(starts, ends, strict=True))
    small = resize(inside, tall, wide)
    if (tall, wide) == (size, size):
        return small
    place = (min(starts[0], size - wide), min(starts[1], size - tall))
    return pad(small, make_canvas((size, size), color or (114.0,), small.image), place)


def _centered(boxes: NDArray[np.float32], window: Window) -> NDArray[np.bool_]:
    """Return which boxes have their center in a window, bool [N]."""
    centers = (boxes[:, :2].astype(np.float64) + boxes[:, 2:]) / 2
    return np.asarray((centers >= window[:2]).all(1) & (centers < window[2:]).all(1))
