"""An image with what is known about its objects.

Dimensions: N objects, P keypoints, K classes, H W image.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sample"]


@dataclass
class Sample:
    """One image with what is known about its objects.

    Attributes:
        image: uint8 [H, W, 3], RGB, upright.
        boxes: float32 [N, 4], xyxy in pixels of `image`, as annotated (they may cross the border).
        labels: int64 [N], 0-based.
        weights: float32 [N]; how much each object counts in training.
        difficult: bool [N]; excused in VOC evaluation.
        is_crowd: bool [N]; the box stands for many objects: ignored in training and evaluation.
        group_of: bool [N]; Open Images' mark of groups.
        areas: float32 [N] in pixels; of the mask where the source knows it, else of the box.
        masks: uint8 [N, H, W] of 0 and 1, or None.
        keypoints: float32 [N, P, 3] as x, y in pixels and visibility (0 or 1), or None.
        class_scores: float32 [N, K]; what the class logits of each object should say, where that is not its
            label alone; or None.
        verified_labels: int64 [V]; classes that somebody looked for in the image, found or not (Open Images).
        id: What identifies the image in its source.
        filename: The image's file name, as the source has it; may be empty.
    """

    image: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    weights: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    difficult: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    is_crowd: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    group_of: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    areas: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    masks: NDArray[np.uint8] | None = None
    keypoints: NDArray[np.float32] | None = None
    class_scores: NDArray[np.float32] | None = None
    verified_labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    id: str = ""
    filename: str = ""

    def __post_init__(self) -> None:
        n = len(self.boxes)
        self.boxes = np.asarray(self.boxes, np.float32).reshape(n, 4)
        self.labels = np.asarray(self.labels, np.int64).reshape(n)
        if len(self.weights) != n:
            self.weights = np.ones(n, np.float32)
        for name in ("difficult", "is_crowd", "group_of"):
            if len(getattr(self, name)) != n:
                setattr(self, name, np.zeros(n, np.bool_))
        if len(self.areas) != n:
            sides = np.maximum(self.boxes[:, 2:] - self.boxes[:, :2], 0)
            self.areas = sides[:, 0] * sides[:, 1]

    def keep(self, index: NDArray[Any]) -> Sample:
        """Return the sample with some of its objects.

        Args:
            index: A boolean mask [N] or integer indices of the objects that stay.

        Returns:
            A sample that shares the image.
        """
        picked = {name: getattr(self, name)[index] for name in _PER_OBJECT if getattr(self, name) is not None}
        return replace(self, **picked)


_PER_OBJECT = (
    "boxes",
    "labels",
    "weights",
    "difficult",
    "is_crowd",
    "group_of",
    "areas",
    "masks",
    "keypoints",
    "class_scores",
)
