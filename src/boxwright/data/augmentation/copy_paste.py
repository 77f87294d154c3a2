"""Copy-paste: objects of another image pasted onto this one.

Dimensions: N objects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.data.augmentation.crop import crop, overlapping
from boxwright.data.augmentation.functional.compose import overlay
from boxwright.data.augmentation.functional.geometry import Window, pad
from boxwright.data.augmentation.functional.regions import covered, mask_boxes, share_covered
from boxwright.data.augmentation.others import SampleProvider
from boxwright.types import Sample


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
        return overlay(image, (self._behind(sample, hidden), pasted))

    def _objects(self, other: Sample, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return another sample with some of its objects, on a canvas of this sample's size."""
        height, width = sample.image.shape[:2]
        window: Window = (0, 0, min(width, other.image.shape[1]), min(height, other.image.shape[0]))
        chosen = other.keep(overlapping(other.boxes, window, self.min_visible) & ~other.is_crowd)
        seen = _fitted(crop(chosen, window, np.ones(len(chosen.boxes), np.bool_), clip_boxes=True), chosen)
        most = min(self.max_objects or len(seen.boxes), len(seen.boxes))
        count = int(rng.integers(1, most + 1)) if most else 0
        # In the order of the other image, so that only the choice is random.
        picked = seen.keep(np.sort(rng.permutation(len(seen.boxes))[:count]))
        return pad(picked, np.zeros((height, width, other.image.shape[2]), other.image.dtype), (0, 0))

    def _behind(self, sample: Sample, hidden: NDArray[np.bool_]) -> Sample:
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
