"""Mosaic: four images around a point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boxwright.data.augmentation.crop import crop, overlapping
from boxwright.data.augmentation.functional.compose import overlay
from boxwright.data.augmentation.functional.geometry import Window, pad, resize
from boxwright.data.augmentation.functional.pixels import Pixels, canvas_of
from boxwright.data.augmentation.others import SampleProvider
from boxwright.types import Sample


@dataclass(frozen=True)
class Mosaic:
    """Place an image and three others around a random point, each with a corner on it (YOLOv4, section 3.3).

    Attributes:
        size: (height, width) of the result; None for the image's own.
        center: (min, max) position of the point, in units of the sides.
        scales: (min, max) of each image's scale; 1 fits it into the whole result.
        min_visible: The share of a box that must be visible for it to stay.
    """

    others: SampleProvider
    probability: float = 1.0
    size: tuple[int, int] | None = None
    center: tuple[float, float] = (0.25, 0.75)
    scales: tuple[float, float] = (0.5, 1.0)
    min_visible: float = 0.2
    color: tuple[float, ...] = (114.0,)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return four samples as one, or the sample unchanged; boxes are clipped to their visible part."""
        if rng.random() >= self.probability:
            return sample
        height, width = self.size or (sample.image.shape[0], sample.image.shape[1])
        x, y = int(width * rng.uniform(*self.center)), int(height * rng.uniform(*self.center))
        # The others went through the steps before this one, as this image did.
        four = [sample, *(self.others(rng) for _ in range(3))]
        canvas = _canvas(four, (height, width), self.color)
        # Of each quadrant: its size, and whether it lies before the point, along x and y.
        rooms = [(x, y, 1, 1), (width - x, y, 0, 1), (x, height - y, 1, 0), (width - x, height - y, 0, 0)]
        placed = []
        for one, (wide, tall, left, above) in zip(four, rooms, strict=True):
            if min(wide, tall) < 1:
                continue
            part = self._part(one, (height, width), (tall, wide), (above, left), rng)
            shown_tall, shown_wide = part.image.shape[:2]
            placed.append(pad(part, canvas, (x - left * shown_wide, y - above * shown_tall)))
        return overlay(canvas, placed)

    def _part(
        self,
        sample: Sample,
        size: tuple[int, int],
        room: tuple[int, int],
        far: tuple[int, int],
        rng: np.random.Generator,
    ) -> Sample:
        """Return the visible part of one image; `far` says whether its lower right end is kept, along y and x."""
        scale = rng.uniform(*self.scales) * min(
            new / old for new, old in zip(size, sample.image.shape[:2], strict=True)
        )
        tall, wide = (max(round(side * scale), 1) for side in sample.image.shape[:2])
        scaled = resize(sample, tall, wide)
        shown_tall, shown_wide = min(tall, room[0]), min(wide, room[1])
        top, left = far[0] * (tall - shown_tall), far[1] * (wide - shown_wide)
        window: Window = (left, top, left + shown_wide, top + shown_tall)
        return crop(scaled, window, overlapping(scaled.boxes, window, self.min_visible), clip_boxes=True)


def _canvas(samples: list[Sample], size: tuple[int, int], color: tuple[float, ...]) -> Pixels:
    """Return a canvas of one color, with a data type for all images."""
    largest = max((sample.image for sample in samples), key=lambda image: image.dtype.itemsize)
    return canvas_of(size, color, largest)
