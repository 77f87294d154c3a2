"""What was found in one image, as arrays: what exported detectors return, and what metrics and pictures read.

Dimensions: D detections, P keypoints, C columns of the class head, h w mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from boxwright.types.categories import Categories, titles

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Fields that are of the whole image, not of each detection.
_OF_IMAGE = ("image_size", "categories")
F = TypeVar("F", bound="DataclassInstance")


@dataclass(frozen=True, eq=False)
class FoundObjects:
    """What was found in one image, best first.

    Attributes:
        boxes: float32 [D, 4], xyxy in pixels of the image as it was given.
        scores: float32 [D].
        labels: int64 [D], 0-based.
        image_size: (height, width) of that image.
        categories: The classes that the labels name.
        anchor_indices: int64 [D]; the anchor that each detection came from; None where not known, as what follows.
        multiclass_scores: float32 [D, C]; all scores of that anchor, background first where there is one.
        keypoints: float32 [D, P, 2], x and y in pixels of the image as it was given.
        masks: float32 [D, h, w] in 0..1; how likely each part of a detection's box belongs to the object.
        tracks: int64 [D]; the number that an object keeps from picture to picture of a video.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]
    image_size: tuple[int, int]
    categories: Categories | None = None
    anchor_indices: NDArray[np.int64] | None = None
    multiclass_scores: NDArray[np.float32] | None = None
    keypoints: NDArray[np.float32] | None = None
    masks: NDArray[np.float32] | None = None
    tracks: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    def above(self, score: float) -> FoundObjects:
        """Keep the detections of at least a score."""
        return chosen(self, self.scores >= score)

    def first(self, count: int) -> FoundObjects:
        """Keep the best detections."""
        return chosen(self, slice(count))

    def names(self) -> list[str]:
        """Return D names; "class 3" for a label without a category."""
        return titles(self.categories, self.labels.tolist())


# Finds objects in pictures, each uint8 [H, W, 3].
Finder = Callable[[Sequence[NDArray[np.uint8]]], list[FoundObjects]]


def chosen(found: F, rows: Any) -> F:
    """Return some rows of what was found in an image, of arrays or of tensors."""
    known = {name: value[rows] for name, value in vars(found).items() if name not in _OF_IMAGE and value is not None}
    return replace(found, **known)
