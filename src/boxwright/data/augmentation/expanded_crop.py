"""Caffe's steps in one pass over the pixels: what a crop drops is never computed, and no whole canvas is painted.

Dimensions: H W image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.data.augmentation.caffe import (
    CaffeDistort,
    Change,
    OverlapCrop,
    RandomExpand,
    change_levels,
    cut_window,
    whole_pixels,
)
from boxwright.data.augmentation.flip import RandomHorizontalFlip
from boxwright.data.augmentation.functional.geometry import Window, pad
from boxwright.data.augmentation.functional.pixels import make_canvas
from boxwright.data.augmentation.transform import Chain, Transform, UnlessMosaic
from boxwright.types import Sample


@dataclass(frozen=True)
class ExpandedCrop:
    """`CaffeDistort`, `RandomExpand`, `OverlapCrop` and a flip: with the draws and results of one after the other."""

    distort: CaffeDistort
    expand: RandomExpand
    crop: OverlapCrop
    flip: Transform

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample."""
        changes = self.distort.draw(rng)
        # Annotations move with an image without channels, which costs nothing.
        placed = sample.with_fields({"image": sample.image[..., :0]})
        size, (left, top) = sample.image.shape[:2], (0, 0)
        canvas = self.expand.draw(size, rng)
        if canvas is not None:
            size, (left, top) = canvas
            placed = pad(placed, np.empty((*size, 0), np.uint8), (left, top))
        shown = (0, 0, size[1], size[0])
        window = self.crop.draw(placed, rng)
        if window is not None:
            shown, placed = whole_pixels(window, *size), cut_window(placed, window)
        flipped = self.flip(placed, rng)
        shown = (shown[0] - left, shown[1] - top, shown[2] - left, shown[3] - top)
        pixels = self._pixels(sample.image, shown, changes, mirrored=flipped is not placed)
        return flipped.with_fields({"image": pixels})

    def _pixels(
        self, image: NDArray[np.uint8], window: Window, changes: Sequence[Change], *, mirrored: bool
    ) -> NDArray[np.uint8]:
        """Return a window of an image, in its coordinates, with the canvas beyond it."""
        height, width = image.shape[:2]
        left, top, right, bottom = window
        inside = max(left, 0), max(top, 0), min(right, width), min(bottom, height)
        part = image[inside[1] : max(inside[3], inside[1]), inside[0] : max(inside[2], inside[0])]
        if part.size:  # OpenCV refuses images without pixels
            part = change_levels(np.ascontiguousarray(part), changes)
            part = np.asarray(cv2.flip(part, 1), np.uint8).reshape(part.shape) if mirrored else part
        if inside == window:
            return part
        canvas = make_canvas((bottom - top, right - left), self.expand.color, image)
        if part.size:
            x, y = right - inside[2] if mirrored else inside[0] - left, inside[1] - top
            canvas[y : y + part.shape[0], x : x + part.shape[1]] = part
        return canvas


@dataclass(frozen=True)
class ByOrigin:
    """One transform for samples that a mosaic made, and another for all others."""

    mosaics: Transform
    others: Transform

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the transformed sample."""
        return (self.mosaics if sample.is_mosaic else self.others)(sample, rng)


def join_steps(transforms: Sequence[Transform]) -> list[Transform]:
    """Return the transforms with Caffe's, in a row, as one `ExpandedCrop`."""
    for at, distort in enumerate(transforms[:-2]):
        expand, crop = transforms[at + 1 : at + 3]
        spares_mosaics = isinstance(expand, UnlessMosaic) and isinstance(crop, UnlessMosaic)
        if isinstance(expand, UnlessMosaic) and isinstance(crop, UnlessMosaic):
            expand, crop = expand.transform, crop.transform
        if isinstance(distort, CaffeDistort) and isinstance(expand, RandomExpand) and isinstance(crop, OverlapCrop):
            flips = [one for one in transforms[at + 3 : at + 4] if type(one) is RandomHorizontalFlip]
            joined: Transform = ExpandedCrop(distort, expand, crop, Chain(flips))
            if spares_mosaics:
                joined = ByOrigin(mosaics=Chain((distort, *flips)), others=joined)
            return [*transforms[:at], joined, *transforms[at + 3 + len(flips) :]]
    return list(transforms)
