"""Detections in one image as arrays: the output of exported detectors, and the input of metrics and drawings.

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

# Fields of the whole image rather than of each detection.
_OF_IMAGE = ("image_size", "categories", "raw")
F = TypeVar("F", bound="DataclassInstance")


# Comparing arrays gives arrays, which have no truth value; a generated `__eq__` would raise.
@dataclass(frozen=True, eq=False)
class FoundObjects:
    """The detections in one image, best first.

    Attributes:
        boxes: float32 [D, 4], xyxy in pixels of the original image.
        scores: float32 [D].
        labels: int64 [D], 0-based.
        image_size: (height, width) of that image.
        categories: The classes of the labels.
        anchor_indices: int64 [D]; the index of the anchor of each. This and the following fields are None if unknown.
        multiclass_scores: float32 [D, C]; all scores of that anchor, background first if there is one.
        keypoints: float32 [D, P, 2], x and y in pixels of the original image.
        keypoint_scores: float32 [D, P] in 0..1; 0 where an object's class has no such keypoint.
        keypoint_depths: float32 [D, P], in the unit of the groundtruth's.
        masks: float32 [D, h, w] in 0..1; the probability that each part of the box belongs to the object.
        surface_parts: uint8 [D, h, w]; within each mask the part of the body's surface, from 1; 0 for none.
        surface_coordinates: float32 [D, h, w, 2]; v and u on that part.
        temporal_offsets: float32 [D, 2]; y and x from the center in the previous frame, in the groundtruth's unit.
        cell_boxes: float32 [D, 4]; CenterNet's boxes, xyxy in cells of its maps.
        embeddings: float32 [D, E] of length 1; nearer for the same individual in other images than for others.
        tracks: int64 [D]; the id that an object keeps from frame to frame of a video.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]
    image_size: tuple[int, int]
    categories: Categories | None = None
    anchor_indices: NDArray[np.int64] | None = None
    multiclass_scores: NDArray[np.float32] | None = None
    keypoints: NDArray[np.float32] | None = None
    keypoint_scores: NDArray[np.float32] | None = None
    keypoint_depths: NDArray[np.float32] | None = None
    masks: NDArray[np.float32] | None = None
    surface_parts: NDArray[np.uint8] | None = None
    surface_coordinates: NDArray[np.float32] | None = None
    temporal_offsets: NDArray[np.float32] | None = None
    cell_boxes: NDArray[np.float32] | None = None
    embeddings: NDArray[np.float32] | None = None
    tracks: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    def above(self, score: float) -> FoundObjects:
        """Return the detections of at least a score."""
        return chosen(self, self.scores >= score)

    def first(self, count: int) -> FoundObjects:
        """Return the best `count` detections."""
        return chosen(self, slice(count))

    def scored_keypoints(self) -> NDArray[np.float32] | None:
        """Return the keypoints with their scores, 1 where those are unknown, float32 [D, P, 3]; None without."""
        if self.keypoints is None:
            return None
        scores = np.ones(self.keypoints.shape[:2]) if self.keypoint_scores is None else self.keypoint_scores
        return np.concatenate([self.keypoints, scores[..., None]], -1).astype(np.float32)

    def names(self) -> list[str]:
        """Return D names; "class 3" for a label without a category."""
        return titles(self.categories, self.labels.tolist())


# Detects objects in images, each uint8 [H, W, 3].
Finder = Callable[[Sequence[NDArray[np.uint8]]], list[FoundObjects]]


def chosen(detections: F, rows: Any) -> F:
    """Return some rows of the detections in an image, of arrays or of tensors."""
    known = {
        name: value[rows] for name, value in vars(detections).items() if name not in _OF_IMAGE and value is not None
    }
    return replace(detections, **known)
