"""Adapter for transforms of Albumentations, which is an optional dependency.

Dimensions: N objects, P keypoints.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from boxwright.base.errors import DataError
from boxwright.data.augmentation.functional.geometry import places_of, put_points
from boxwright.data.augmentation.functional.pixels import as_levels
from boxwright.data.augmentation.global_random import seeded
from boxwright.types import Sample

# Settings of a pipeline's BboxParams that decide which boxes stay.
_FILTERS = ("min_area", "min_visibility", "min_width", "min_height", "max_accept_ratio")


def is_of_albumentations(transform: object) -> bool:
    """Return whether an object is a transform or a pipeline of Albumentations."""
    library = sys.modules.get("albumentations")  # a transform implies that it is imported
    return library is not None and isinstance(transform, library.BasicTransform | library.BaseCompose)


@dataclass(frozen=True)
class AlbumentationsTransform:
    """Apply a transform of Albumentations to image, boxes, masks and keypoints together.

    The pipeline's own `BboxParams` decide which boxes stay; their format and fields are set here. Boxes are clipped to
    the image, those without area are dropped, keypoints outside are hidden. Pixels become uint8.

    Attributes:
        pipeline: From `albumentations_transform`; seeded by the sample's generator.
    """

    pipeline: Any

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample; a `DataError` if its image is no longer uint8."""
        height, width = sample.image.shape[:2]
        clipped = np.clip(sample.boxes, 0, [width, height, width, height])
        # The library rejects boxes without area; training drops them anyway.
        sample = sample.keep(np.flatnonzero((clipped[:, 2:] > clipped[:, :2]).all(1)))
        given: dict[str, Any] = {
            "image": as_levels(sample.image),
            "bboxes": sample.boxes,
            "rows": np.arange(len(sample.boxes)),
            "keypoints": np.zeros((0, 2), np.float32),
        }
        if sample.masks is not None and len(sample.masks):
            given["masks"] = list(sample.masks)
        if (places := places_of(sample)) is not None:
            given["keypoints"] = np.nan_to_num(places).reshape(-1, 2)
        with seeded(rng) as seed:
            self.pipeline.set_random_seed(seed)
            done = self.pipeline(**given)
        return _sample(sample, done)


def albumentations_transform(transform: Any) -> AlbumentationsTransform:
    """Return a transform that applies one of Albumentations, including to boxes, masks and keypoints."""
    import albumentations

    own = getattr(transform, "processors", {}).get("bboxes")
    filters = {name: getattr(own.params, name) for name in _FILTERS if own is not None and hasattr(own.params, name)}
    whole = isinstance(transform, albumentations.Compose)
    with warnings.catch_warnings():  # a pipeline may leave boxes alone
        warnings.filterwarnings("ignore", message="Got processor for")
        pipeline = albumentations.Compose(
            transform.transforms if whole else [transform],
            bbox_params=albumentations.BboxParams(format="pascal_voc", label_fields=["rows"], clip=True, **filters),
            keypoint_params=albumentations.KeypointParams(format="xy", remove_invisible=False),
            p=transform.p if whole else 1.0,
        )
    return AlbumentationsTransform(pipeline)


def _sample(before: Sample, done: dict[str, Any]) -> Sample:
    image = np.ascontiguousarray(done["image"])
    if image.dtype != np.uint8:
        raise DataError(
            f"user_augmentation: images became {image.dtype}; they must stay uint8, 0 to 255 (no ToFloat, no "
            "Normalize: the network scales its input itself)"
        )
    rows = np.asarray(done["rows"], np.int64)
    boxes = np.asarray(done["bboxes"], np.float32).reshape(-1, 4)
    change: dict[str, Any] = {"boxes": lambda _: boxes}
    if "masks" in done:
        masks = np.stack([np.asarray(mask) for mask in done["masks"]])
        change["masks"] = lambda _: masks[rows].astype(np.uint8)
    elif before.masks is not None:
        change["masks"] = lambda _: np.zeros((0, *image.shape[:2]), np.uint8)
    if (old := places_of(before)) is not None:
        places = np.asarray(done["keypoints"], np.float32).reshape(old.shape)[rows]
        change |= put_points(places, before, (image.shape[0], image.shape[1]))
    return before.keep(rows).moved(image, **change)
