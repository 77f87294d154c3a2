"""Several images in one: mosaics of four, blends of two (MixUp), and objects pasted from another image (copy-paste).

Dimensions: N objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.data.augmentation.crop import crop, overlapping
from boxwright.data.augmentation.functional.compose import covered, mask_boxes, overlay, share_covered
from boxwright.data.augmentation.functional.geometry import Window, pad, resize
from boxwright.data.augmentation.functional.pixels import Pixels, as_float, like, make_canvas
from boxwright.data.augmentation.functional.warp import move_affine, scaled_rotation
from boxwright.data.augmentation.transform import SampleProvider
from boxwright.nn.ops.resize import resize_antialiased
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
        share = float(rng.beta(self.alpha, self.alpha))
        return _blend(sample, self.others(rng), share, self.min_weight)


# Separates these draws from those of order, augmentation, sizes and networks.
_BLENDING = 0x6D697875


@dataclass(frozen=True)
class BatchMixUp:
    """Blend each image of a batch with the one before it, the first with the last (as DEIM; Huang et al., 2024).

    Objects of both images stay, with their full weight. What is drawn follows from seed and step alone: every process
    blends its part of a batch alike, and a resumed run draws the same.

    Attributes:
        probability: How often a batch is blended.
        shares: (min, max) share of each image; the one before it has the rest.
        until_step: The training step from which no batch is blended; 0 for none.
    """

    seed: int
    probability: float = 0.5
    shares: tuple[float, float] = (0.45, 0.55)
    from_step: int = 0
    until_step: int = 0

    def __call__(self, samples: Sequence[Sample], step: int) -> list[Sample]:
        """Return the samples of a step's batch, counted from 0, blended or as they are; one alone stays as it is.

        Args:
            samples: At the network's size.
            step: The training step.
        """
        rng = np.random.default_rng([self.seed, step, _BLENDING, 1])
        ended = self.until_step and step >= self.until_step
        if len(samples) < 2 or step < self.from_step or ended or rng.random() >= self.probability:
            return list(samples)
        share = float(rng.uniform(*self.shares))
        before = [samples[-1], *samples[:-1]]
        return [_blend(sample, other, share, 1.0) for sample, other in zip(samples, before, strict=True)]


def _blend(sample: Sample, other: Sample, share: float, min_weight: float) -> Sample:
    """Return two samples in one image, aligned at the upper left corners.

    Args:
        share: Of the first; the other has the rest.
        min_weight: The least weight of an object, which is its image's share otherwise.
    """
    height, width = np.maximum(sample.image.shape[:2], other.image.shape[:2])
    placed, blend = [], np.zeros((height, width, sample.image.shape[2]), np.float32)
    for source, part in ((sample, share), (other, 1 - share)):
        canvas = np.zeros(blend.shape, np.float32)
        weights = source.weights * np.float32(max(part, min_weight))
        weighted = replace(source, image=as_float(source.image), weights=weights)
        placed.append(pad(weighted, canvas, (0, 0)))
        blend += np.float32(part) * canvas
    whole = sample.image.dtype == other.image.dtype == np.uint8
    blended = overlay(like(sample.image, blend) if whole else blend, placed)
    if sample.true_size is None or other.true_size is None:
        return blended
    tall, wide = np.maximum(sample.true_size, other.true_size).tolist()
    return replace(blended, true_size=(tall, wide))


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
        return replace(overlay(canvas, placed), is_mosaic=True)

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


@dataclass(frozen=True)
class AffineMosaic:
    """Place an image and three others in the quadrants of a canvas; turn, shift and scale it (Huang et al., 2024).

    Each image lies in the upper left corner of its quadrant, which is as large as the largest of the four.

    Attributes:
        shorter_side: The length to which each image's shorter side is scaled first, in pixels.
        degrees: The largest angle by which the canvas is turned, to either side.
        shift: The largest shift, in units of the canvas's sides.
        scales: (min, max) scale of the canvas, whose own size stays.
    """

    others: SampleProvider
    probability: float = 1.0
    shorter_side: int = 320
    degrees: float = 10.0
    shift: float = 0.1
    scales: tuple[float, float] = (0.5, 1.5)
    color: tuple[float, ...] = (0.0,)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return four samples as one, or the sample unchanged; boxes are clipped to their visible part."""
        if rng.random() >= self.probability:
            return sample
        four = [self._scaled(source) for source in (sample, *(self.others(rng) for _ in range(3)))]
        tall, wide = np.max([source.image.shape[:2] for source in four], axis=0).tolist()
        canvas = _canvas(four, (2 * tall, 2 * wide), self.color)
        corners = [(0, 0), (wide, 0), (0, tall), (wide, tall)]
        mosaic = overlay(canvas, [pad(source, canvas, corner) for source, corner in zip(four, corners, strict=True)])
        degrees = rng.uniform(-self.degrees, self.degrees)
        right, down = (round(side * rng.uniform(-self.shift, self.shift)) for side in (2 * wide, 2 * tall))
        where = scaled_rotation(degrees, rng.uniform(*self.scales), (right, down), 2 * tall, 2 * wide)
        return replace(move_affine(mosaic, where, self.color), is_mosaic=True)

    def _scaled(self, sample: Sample) -> Sample:
        shorter = min(sample.image.shape[:2])
        # The longer side is cut off to whole pixels, as torchvision does.
        tall, wide = (self.shorter_side * side // shorter for side in sample.image.shape[:2])
        return resize(sample, tall, wide, resize_antialiased)


def _canvas(samples: list[Sample], size: tuple[int, int], color: tuple[float, ...]) -> Pixels:
    """Return a canvas of one color, with a data type for all images."""
    largest = max((sample.image for sample in samples), key=lambda image: image.dtype.itemsize)
    return make_canvas(size, color, largest)
