"""Random erasing: noise over part of each object."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from boxwright.data.augmentation.crop import crop, overlapping
from boxwright.data.augmentation.functional.compose import covered
from boxwright.data.augmentation.functional.geometry import Window, pad, resize
from boxwright.data.augmentation.functional.pixels import canvas_of
from boxwright.types import Sample


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
class LargeScaleJitter:
    """Scale by a wide range, crop at random if larger than the result, pad if smaller (Ghiasi et al., 2021).

    TF's `random_scale_crop_and_pad_to_square` is the same for squares, in black, and without `min_visible`.

    Attributes:
        scales: (min, max); 1 fits the image into the result.
        min_visible: The share of a box that must be visible for it to stay.
        color: Of the padding at the bottom and right.
    """

    size: tuple[int, int] = (1024, 1024)
    scales: tuple[float, float] = (0.1, 2.0)
    min_visible: float = 0.2
    color: tuple[float, ...] = (114.0,)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a sample of that size; boxes are clipped."""
        sides = sample.image.shape[:2]
        scale = rng.uniform(*self.scales) * min(new / old for new, old in zip(self.size, sides, strict=True))
        tall, wide = (max(round(side * scale), 1) for side in sides)
        shown = min(tall, self.size[0]), min(wide, self.size[1])
        top, left = int(rng.integers(0, tall - shown[0] + 1)), int(rng.integers(0, wide - shown[1] + 1))
        scaled = resize(sample, tall, wide)
        window: Window = (left, top, left + shown[1], top + shown[0])
        inside = crop(scaled, window, overlapping(scaled.boxes, window, self.min_visible), clip_boxes=True)
        return pad(inside, canvas_of(self.size, self.color, inside.image), (0, 0))


@dataclass(frozen=True)
class RandomErasing:
    """Fill a rectangle in each object with noise, at random (Zhong et al., 2020, section 3.3, "object-aware").

    A rectangle that is longer than the box is clipped to it; the paper draws again until one fits. Boxes and masks
    stay: the object is still there, only occluded.

    Attributes:
        areas: (min, max) area, as a share of the box's.
        min_aspect_ratio: Minimum height over width; the maximum is its inverse.
    """

    probability: float = 0.5
    areas: tuple[float, float] = (0.02, 0.2)
    min_aspect_ratio: float = 0.3

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample with noise in some objects."""
        height, width = sample.image.shape[:2]
        boxes = np.clip(sample.boxes, 0, [width, height, width, height]).astype(np.float64)
        chosen = boxes[rng.random(len(boxes)) < self.probability]
        if not len(chosen):
            return sample
        sides = np.maximum(chosen[:, 2:] - chosen[:, :2], 0)
        areas = sides.prod(1) * rng.uniform(*self.areas, len(chosen))
        ratios = rng.uniform(self.min_aspect_ratio, 1 / self.min_aspect_ratio, len(chosen))
        erased = np.minimum(np.stack([np.sqrt(areas / ratios), np.sqrt(areas * ratios)], 1), sides)
        corners = chosen[:, :2] + rng.random((len(chosen), 2)) * (sides - erased)
        hidden = covered(np.concatenate([corners, corners + erased], 1), height, width)
        image = sample.image.copy()
        image[hidden] = rng.integers(0, 256, (int(hidden.sum()), image.shape[2]))
        return replace(sample, image=image)
