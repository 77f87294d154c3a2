"""Adapter for transforms of torchvision (v2).

Dimensions: N objects, P keypoints.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from boxwright.base.errors import DataError
from boxwright.data.augmentation.functional.geometry import places_of, put_points
from boxwright.data.augmentation.functional.pixels import as_levels
from boxwright.data.augmentation.global_random import seeded
from boxwright.types import Sample


def is_of_torchvision(transform: object) -> bool:
    """Return whether an object is a transform of torchvision v2."""
    # Where nobody has imported it, which takes a second, nothing is of it.
    v2 = sys.modules.get("torchvision.transforms.v2")
    return v2 is not None and isinstance(transform, v2.Transform | v2.Compose)


@dataclass(frozen=True)
class TorchvisionTransform:
    """Apply a transform of torchvision to image, boxes, masks and keypoints together.

    It receives the image and a dictionary of "boxes", "masks", "keypoints" and "labels". The labels are indices of the
    objects, by which all other fields follow if some are removed (`SanitizeBoundingBoxes`). Objects with empty boxes
    are dropped, keypoints outside are hidden. Pixels become uint8: torchvision expects floats to be in 0..1.

    Attributes:
        transform: The torchvision transform; it may be random, and is seeded by the sample's generator.
    """

    transform: nn.Module

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample; a `DataError` if its image is no longer uint8."""
        from torchvision import tv_tensors

        size = (sample.image.shape[0], sample.image.shape[1])
        target: dict[str, Any] = {
            # Copies: a transform may work in place, and samples are never modified.
            "boxes": tv_tensors.BoundingBoxes(torch.from_numpy(sample.boxes.copy()), format="XYXY", canvas_size=size),
            "labels": torch.arange(len(sample.boxes)),
        }
        if sample.masks is not None:
            target["masks"] = tv_tensors.Mask(torch.from_numpy(sample.masks.copy()))
        if (places := places_of(sample)) is not None:
            target["keypoints"] = tv_tensors.KeyPoints(torch.from_numpy(places.copy()), canvas_size=size)
        image = tv_tensors.Image(torch.from_numpy(np.ascontiguousarray(as_levels(sample.image).transpose(2, 0, 1))))
        with seeded(rng):
            image, target = self.transform(image, target)
        return _sample(sample, image, target)


def _sample(before: Sample, image: torch.Tensor, target: dict[str, Any]) -> Sample:
    pixels = np.ascontiguousarray(image.numpy().transpose(1, 2, 0))
    if pixels.dtype != np.uint8:
        raise DataError(
            f"user_augmentation: images became {pixels.dtype}; they must stay uint8, 0 to 255 (no "
            "ToDtype, no Normalize: the network scales its input itself)"
        )
    rows = target["labels"].numpy()
    boxes = np.asarray(target["boxes"].numpy(), np.float32).reshape(-1, 4)
    if len(rows) != len(boxes):
        raise DataError(f"user_augmentation: {len(boxes)} boxes, {len(rows)} labels: they must be removed together")
    count, (height, width) = len(before.boxes), pixels.shape[:2]
    change: dict[str, Any] = {"boxes": lambda _: boxes}
    if "masks" in target:
        masks = _of_objects(target["masks"].numpy(), rows, count)
        change["masks"] = lambda _: masks.astype(np.uint8)
    if "keypoints" in target:
        places = _of_objects(target["keypoints"].numpy(), rows, count)
        change |= put_points(places, before, (height, width))
    return before.keep(rows).moved(pixels, **change).keep(np.flatnonzero((boxes[:, 2:] > boxes[:, :2]).all(1)))


def _of_objects(values: NDArray[Any], rows: NDArray[np.int64], count: int) -> NDArray[Any]:
    """Return the rows of the remaining objects; the transform may have dropped the others' already."""
    return values if len(values) == len(rows) != count else values[rows]
