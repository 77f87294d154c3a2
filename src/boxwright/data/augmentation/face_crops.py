"""Square crops that scale faces to the sizes of a detector's anchors (PyramidBox's and SRN's augmentation)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boxwright.data.augmentation.crop import crop
from boxwright.data.augmentation.functional.geometry import Window, pad, resize
from boxwright.data.augmentation.functional.pixels import canvas_of
from boxwright.types import Sample


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
    return pad(small, canvas_of((size, size), color or (114.0,), small.image), place)


def _centered(boxes: NDArray[np.float32], window: Window) -> NDArray[np.bool_]:
    """Return which boxes have their center in a window, bool [N]."""
    centers = (boxes[:, :2].astype(np.float64) + boxes[:, 2:]) / 2
    return np.asarray((centers >= window[:2]).all(1) & (centers < window[2:]).all(1))
