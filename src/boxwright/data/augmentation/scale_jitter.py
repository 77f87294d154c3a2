"""Large-scale jitter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boxwright.data.augmentation.crop import crop, overlapping
from boxwright.data.augmentation.functional.geometry import Window, pad, resize
from boxwright.data.augmentation.functional.pixels import canvas_of
from boxwright.types import Sample


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
