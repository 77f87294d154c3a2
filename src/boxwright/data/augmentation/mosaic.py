"""Several images in one: mosaics of four, blends of two (MixUp), and objects pasted from another image (copy-paste).

Dimensions: N objects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.data.augmentation.crop import crop, overlapping
from boxwright.data.augmentation.functional.compose import covered, mask_boxes, overlay, share_covered
from boxwright.data.augmentation.functional.geometry import Window, pad, resize
from boxwright.data.augmentation.functional.pixels import Pixels, as_float, like, make_canvas
from boxwright.data.augmentation.transform import SampleProvider
from boxwright.types import Sample


@dataclass(frozen=True)
class MixUp:
    """Blend in another image, aligned at the upper left corners (Zhang et al., 2019, section 3.1).

    Neither image is resized: the result has the larger height and width. Objects of both stay, weighted by their
    image's share.

    Attributes:
        alpha: The image's share is drawn from Beta(alpha, alpha).
        min_weight: The least weight of an object.
    """

    others: SampleProvider
    probability: float = 0.5
    alpha: float = 1.5
    min_weight: float = 0.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the blend of two samples, or the sample unchanged."""
        if rng.random() >= self.probability:
            return sample
        share, other = float(rng.beta(self.alpha, self.alpha)), self.others(rng)
        height, width = np.maximum(sample.image.shape[:2], other.image.shape[:2])
        placed, blend = [], np.zeros((height, width, sample.image.shape[2]), np.float32)
        for source, part in ((sample, share), (other, 1 - share)):
            canvas = np.zeros(blend.shape, np.float32)
            weights = source.weights * np.float32(max(part, self.min_weight))
            weighted = replace(source, image=as_float(source.image), weights=weights)
            placed.append(pad(weighted, canvas, (0, 0)))
            blend += np.float32(part) * canvas
        whole = sample.image.dtype == other.image.dtype == np.uint8
        return overlay(like(sample.image, blend) if whole else blend, placed)


@dataclass(frozen=True)
class CopyPaste:
    """Paste some objects of another image at their original positions (Ghiasi et al., 2021).

    Objects are pasted by their masks, and objects below lose the hidden part of mask and box; data without masks are
    pasted by boxes. The paper's transforms of both images are separate steps before this one.

    Attributes:
        max_objects: The maximum number of pasted objects; 0 for no limit.
        min_visible: The share of an object that must stay visible for it to stay.
    """

    others: SampleProvider
    probability: float = 0.5
    max_objects: int = 0
    min_visible: float = 0.2

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample with pasted objects, or unchanged."""
        if rng.random() >= self.probability:
            return sample
        pasted = self._objects(self.others(rng), sample, rng)
        # An image with masks takes no objects without: `overlay` would drop the masks of all.
        if not len(pasted.boxes) or (sample.masks is not None and len(sample.boxes) and pasted.masks is None):
            return sample
        height, width = sample.image.shape[:2]
        hidden = covered(pasted.boxes, height, width) if pasted.masks is None else pasted.masks.max(0) > 0
        image = np.where(hidden[..., None], pasted.image, sample.image)
        return overlay(image, (self._hide_parts(sample, hidden), pasted))

    def _objects(self, other: Sample, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return another sample with some of its objects, on a canvas of this sample's size."""
        height, width = sample.image.shape[:2]
        window: Window = (0, 0, min(width, other.image.shape[1]), min(height, other.image.shape[0]))
        chosen = other.keep(overlapping(other.boxes, window, self.min_visible) & ~other.is_crowd)
        seen = _fitted(crop(chosen, window, np.ones(len(chosen.boxes), np.bool_), clip_boxes=True), chosen)
        most = min(self.max_objects or len(seen.boxes), len(seen.boxes))
        count = int(rng.integers(1, most + 1)) if most else 0
        # Objects keep the other image's order, so that only the choice is random.
        picked = seen.keep(np.sort(rng.permutation(len(seen.boxes))[:count]))
        return pad(picked, np.zeros((height, width, other.image.shape[2]), other.image.dtype), (0, 0))

    def _hide_parts(self, sample: Sample, hidden: NDArray[np.bool_]) -> Sample:
        """Return the sample's objects after parts of them were hidden."""
        if not len(sample.boxes):
            return sample
        changed: dict[str, Any] = {}
        if sample.masks is None:
            visible = 1 - share_covered(sample.boxes, hidden)
        else:
            before = sample.masks.sum((1, 2), dtype=np.int64)
            masks = sample.masks * ~hidden
            after = masks.sum((1, 2), dtype=np.int64)
            visible = np.divide(after, before, out=np.zeros(len(before)), where=before > 0)
            # Unhidden objects keep their annotated box, which may differ from the mask's.
            boxes = np.where((visible < 1)[:, None], mask_boxes(masks), sample.boxes)
            changed = {"masks": masks, "boxes": boxes, "areas": (sample.areas * visible).astype(np.float32)}
        kept = (visible > 0) & (visible >= self.min_visible)
        seen = sample.moved(sample.image, points=lambda points: _hide(points, hidden))
        return replace(seen, **changed).keep(kept)


def _fitted(seen: Sample, whole: Sample) -> Sample:
    """Return a crop's objects with visible masks; those that were cut get boxes and areas of their masks."""
    if seen.masks is None or whole.masks is None:
        return seen
    after, before = (masks.sum((1, 2), dtype=np.int64) for masks in (seen.masks, whole.masks))
    cut = after < before
    boxes = np.where(cut[:, None], mask_boxes(seen.masks), seen.boxes)
    areas = np.where(cut, after, seen.areas).astype(np.float32)
    return replace(seen, boxes=boxes, areas=areas).keep(after > 0)


def _hide(points: NDArray[np.float32], hidden: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return points [N, P, 3] with the covered ones invisible."""
    height, width = hidden.shape
    known = np.nan_to_num(points[..., :2])
    columns = np.clip(known[..., 0], 0, width - 1).astype(np.int64)
    rows = np.clip(known[..., 1], 0, height - 1).astype(np.int64)
    return np.concatenate([points[..., :2], (points[..., 2] * ~hidden[rows, columns])[..., None]], -1)


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
        # A quadrant has a size, and lies before the point or after it, along x and y.
        quadrants = [(x, y, 1, 1), (width - x, y, 0, 1), (x, height - y, 1, 0), (width - x, height - y, 0, 0)]
        placed = []
        for source, (wide, tall, left, above) in zip(four, quadrants, strict=True):
            if min(wide, tall) < 1:
                continue
            part = self._part(source, (height, width), (tall, wide), (above, left), rng)
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
    return make_canvas(size, color, largest)
