"""Flips and quarter turns.

Dimensions: N boxes, P keypoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boxwright.types import Sample

__all__ = ["RandomHorizontalFlip", "RandomRotation90", "RandomVerticalFlip"]


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirror left and right.

    Attributes:
        probability: How often.
        keypoint_permutation: Which keypoint each becomes (left eye ↔ right eye); empty for none.
    """

    probability: float = 0.5
    keypoint_permutation: Sequence[int] = ()

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Flip, perhaps.

        Args:
            sample: The sample.
            rng: The source of all randomness.

        Returns:
            The sample, mirrored or not.
        """
        return _mirror(sample, 0, self.keypoint_permutation) if rng.random() < self.probability else sample


@dataclass(frozen=True)
class RandomVerticalFlip:
    """Mirror up and down.

    Attributes:
        probability: How often.
        keypoint_permutation: Which keypoint each becomes; empty for none.
    """

    probability: float = 0.5
    keypoint_permutation: Sequence[int] = ()

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Flip, perhaps.

        Args:
            sample: The sample.
            rng: The source of all randomness.

        Returns:
            The sample, mirrored or not.
        """
        return _mirror(sample, 1, self.keypoint_permutation) if rng.random() < self.probability else sample


def _mirror(sample: Sample, axis: int, permutation: Sequence[int]) -> Sample:
    """Mirror along x (axis 0) or y (axis 1); copies, as strides of a side of one pixel can be negative."""
    length = sample.image.shape[1 - axis]
    image_axis = 1 - axis
    boxes = sample.boxes.copy()
    boxes[:, axis], boxes[:, axis + 2] = length - sample.boxes[:, axis + 2], length - sample.boxes[:, axis]
    keypoints = sample.keypoints
    if keypoints is not None:
        keypoints = keypoints[:, list(permutation)].copy() if permutation else keypoints.copy()
        keypoints[..., axis] = length - keypoints[..., axis]
    masks = None if sample.masks is None else np.flip(sample.masks, image_axis + 1).copy()
    image: NDArray[np.uint8] = np.flip(sample.image, image_axis).copy()
    return replace(sample, image=image, boxes=boxes, keypoints=keypoints, masks=masks)


@dataclass(frozen=True)
class RandomRotation90:
    """Turn a quarter, counter-clockwise.

    Attributes:
        probability: How often.
        keypoint_permutation: Which keypoint each becomes; empty for none.
    """

    probability: float = 0.5
    keypoint_permutation: Sequence[int] = ()

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Turn, perhaps.

        Args:
            sample: The sample.
            rng: The source of all randomness.

        Returns:
            The sample, turned or not.
        """
        if rng.random() >= self.probability:
            return sample
        width = sample.image.shape[1]
        boxes = sample.boxes[:, [1, 0, 3, 2]].copy()
        boxes[:, 1], boxes[:, 3] = width - sample.boxes[:, 2], width - sample.boxes[:, 0]
        keypoints = sample.keypoints
        if keypoints is not None:
            points = keypoints[:, list(self.keypoint_permutation)] if self.keypoint_permutation else keypoints
            keypoints = np.stack([points[..., 1], width - points[..., 0], points[..., 2]], axis=-1)
        masks = None if sample.masks is None else np.rot90(sample.masks, axes=(1, 2)).copy()
        image = np.rot90(sample.image).copy()
        return replace(sample, image=image, boxes=boxes, keypoints=keypoints, masks=masks)
