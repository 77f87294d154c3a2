"""Tiles of large images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boxwright.data.augmentation.crop import crop, overlapping
from boxwright.data.augmentation.functional.geometry import Window
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
