"""Changes to annotations: boxes that jitter, classes that are merged or dropped.

Dimensions: N objects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.types import Sample

# Given the room around each box, returns how far each edge moves outward: [N, 4] as y_min, x_min, y_max, x_max in units
# of the box's own height and width.
Jitter = Callable[[np.random.Generator, NDArray[Any], float], NDArray[Any]]


def _grow_symmetric(rng: np.random.Generator, room: NDArray[Any], ratio: float) -> NDArray[Any]:
    by_axis = np.minimum(room[:, :2], room[:, 2:])
    return np.tile(np.minimum(rng.uniform(0, ratio, by_axis.shape) / 2, by_axis), 2)


def _grow_alike(rng: np.random.Generator, room: NDArray[Any], ratio: float) -> NDArray[Any]:
    drawn = rng.uniform(0, ratio, (len(room), 2))[:, 0] / 2  # TF draws the second but does not use it
    return np.repeat(np.minimum(drawn, room.min(1))[:, None], 4, axis=1)


_JITTERS: dict[str, Jitter] = {
    "DEFAULT": lambda rng, room, ratio: rng.uniform(-ratio, ratio, room.shape) / 2,
    "EXPAND": lambda rng, room, ratio: rng.uniform(0, ratio, room.shape) / 2,
    "SHRINK": lambda rng, room, ratio: rng.uniform(-ratio, 0, room.shape) / 2,
    "EXPAND_SYMMETRIC": _grow_symmetric,
    "SHRINK_SYMMETRIC": lambda rng, room, ratio: np.tile(rng.uniform(-ratio, 0, (len(room), 2)) / 2, 2),
    "EXPAND_SYMMETRIC_XY": _grow_alike,
    "SHRINK_SYMMETRIC_XY": lambda rng, room, ratio: np.repeat(
        rng.uniform(-ratio, 0, (len(room), 2))[:, :1] / 2, 4, axis=1
    ),
}
_YX = [1, 0, 3, 2]
_SIGNS = np.array([-1, -1, 1, 1], np.float32)


@dataclass(frozen=True)
class JitterBoxes:
    """Move the edges of each box; boxes stay in the image.

    Attributes:
        mode: How, by the name of TF's `JitterMode`.
        ratio: The maximum share of its sides that a box gains or loses.
    """

    mode: str = "DEFAULT"
    ratio: float = 0.05

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a sample with other boxes."""
        height, width = sample.image.shape[:2]
        limits = np.array([width, height] * 2, np.float32)
        sides = np.tile(sample.boxes[:, 2:] - sample.boxes[:, :2], 2)
        free = np.concatenate([sample.boxes[:, :2], limits[2:] - sample.boxes[:, 2:]], 1)
        room = np.divide(free, sides, out=np.full_like(free, np.inf), where=sides > 0)
        outward = _JITTERS[self.mode](rng, room[:, _YX], self.ratio).astype(np.float32)[:, _YX]
        moved = sample.boxes + outward * sides * _SIGNS
        return replace(sample, boxes=np.clip(moved, 0, limits).astype(np.float32))


@dataclass(frozen=True)
class DropLabel:
    """Drop objects of a class, each with a probability."""

    label: int
    probability: float = 1.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample with the other objects."""
        drawn = rng.random(len(sample.labels))
        return sample.keep((sample.labels != self.label) | (drawn > self.probability))


@dataclass(frozen=True)
class RemapLabels:
    """Change the label of objects of some classes."""

    originals: tuple[int, ...]
    label: int

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a sample with other labels."""
        del rng
        merged = np.isin(sample.labels, self.originals)
        return replace(sample, labels=np.where(merged, self.label, sample.labels).astype(np.int64))


@dataclass(frozen=True)
class ScoresFromLogits:
    """Turn stored class logits, divided by `temperature`, into scores by a softmax."""

    temperature: float = 1.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample with scores; unchanged if it has no logits."""
        del rng
        if sample.class_scores is None or not sample.class_scores.size:
            return sample
        logits = sample.class_scores / np.float32(self.temperature)
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        return replace(sample, class_scores=(powers / powers.sum(-1, keepdims=True)).astype(np.float32))


def as_it_is(sample: Sample, rng: np.random.Generator) -> Sample:
    """Return the sample: boxes are always in pixels (TF's `scale_boxes_to_pixel_coordinates`)."""
    del rng
    return sample
