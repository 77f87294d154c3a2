"""Adapters for transforms of Albumentations, an optional dependency, of torchvision (v2), and of a user's own.

Dimensions: N objects, P keypoints.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from boxwright.base.errors import DataError
from boxwright.data.augmentation.functional.geometry import collect_points, put_points
from boxwright.data.augmentation.functional.pixels import as_levels
from boxwright.data.augmentation.transform import Transform
from boxwright.types import Sample
from boxwright.types.pixels import check_augmented


@contextmanager
def seeded(rng: np.random.Generator) -> Iterator[int]:
    """Seed the global generators of Python, NumPy and PyTorch (on the CPU), and restore them at the end.

    Yields:
        The seed, for generators of the library's own.
    """
    seed = int(rng.integers(0, 2**32))
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    # torch.manual_seed would seed CUDA's generators as well, from a data worker.
    torch.default_generator.manual_seed(seed)
    try:
        yield seed
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def is_of_torchvision(transform: object) -> bool:
    """Return whether an object is a transform of torchvision v2."""
    # An import takes a second, and is not needed: what nobody has imported has no objects.
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
        if (places := collect_points(sample)) is not None:
            target["keypoints"] = tv_tensors.KeyPoints(torch.from_numpy(places.copy()), canvas_size=size)
        image = tv_tensors.Image(torch.from_numpy(np.ascontiguousarray(as_levels(sample.image).transpose(2, 0, 1))))
        with seeded(rng):
            image, target = self.transform(image, target)
        return _transformed_sample(sample, image, target)


def _transformed_sample(before: Sample, image: torch.Tensor, target: dict[str, Any]) -> Sample:
    pixels = np.ascontiguousarray(image.numpy().transpose(1, 2, 0))
    if pixels.dtype != np.uint8:
        raise DataError(
            f"user_augmentation: images became {pixels.dtype}; they must stay uint8, 0 to 255 (no "
            "ToDtype, no Normalize: the network scales its input itself)"
        )
    check_augmented(pixels, before.image, "user_augmentation")
    rows = target["labels"].numpy()
    boxes = np.asarray(target["boxes"].numpy(), np.float32).reshape(-1, 4)
    if len(rows) != len(boxes):
        raise DataError(f"user_augmentation: {len(boxes)} boxes, {len(rows)} labels: they must be removed together")
    count, (height, width) = len(before.boxes), pixels.shape[:2]
    change: dict[str, Any] = {"boxes": lambda _: boxes}
    if "masks" in target:
        masks = _select_objects(target["masks"].numpy(), rows, count)
        change["masks"] = lambda _: masks.astype(np.uint8)
    if "keypoints" in target:
        places = _select_objects(target["keypoints"].numpy(), rows, count)
        change |= put_points(places, before, (height, width))
    return before.keep(rows).moved(pixels, **change).keep(np.flatnonzero((boxes[:, 2:] > boxes[:, :2]).all(1)))


def _select_objects(values: NDArray[Any], rows: NDArray[np.int64], count: int) -> NDArray[Any]:
    """Return the rows of the remaining objects; the transform may have dropped the others' already."""
    return values if len(values) == len(rows) != count else values[rows]


@dataclass(frozen=True)
class OwnTransform:
    """Apply a user's transform, with the global generators seeded."""

    transform: Transform

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return its result; a `DataError` if that is not a sample, or its image is none in 0..255."""
        with seeded(rng):
            transformed = self.transform(sample, rng)
        if not isinstance(transformed, Sample):
            raise DataError(
                f"user_augmentation: the transform returned {type(transformed).__name__}; expected a Sample"
            )
        image = check_augmented(transformed.image, sample.image, "user_augmentation")
        return transformed if image is transformed.image else replace(transformed, image=image)


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
        if (places := collect_points(sample)) is not None:
            given["keypoints"] = np.nan_to_num(places).reshape(-1, 2)
        with seeded(rng) as seed:
            self.pipeline.set_random_seed(seed)
            result = self.pipeline(**given)
        return _sample(sample, result)


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


def _sample(before: Sample, result: dict[str, Any]) -> Sample:
    image = np.ascontiguousarray(result["image"])
    if image.dtype != np.uint8:
        raise DataError(
            f"user_augmentation: images became {image.dtype}; they must stay uint8, 0 to 255 (no ToFloat, no "
            "Normalize: the network scales its input itself)"
        )
    check_augmented(image, before.image, "user_augmentation")
    rows = np.asarray(result["rows"], np.int64)
    boxes = np.asarray(result["bboxes"], np.float32).reshape(-1, 4)
    change: dict[str, Any] = {"boxes": lambda _: boxes}
    if "masks" in result:
        masks = np.stack([np.asarray(mask) for mask in result["masks"]])
        change["masks"] = lambda _: masks[rows].astype(np.uint8)
    elif before.masks is not None:
        change["masks"] = lambda _: np.zeros((0, *image.shape[:2]), np.uint8)
    if (old := collect_points(before)) is not None:
        places = np.asarray(result["keypoints"], np.float32).reshape(old.shape)[rows]
        change |= put_points(places, before, (image.shape[0], image.shape[1]))
    return before.keep(rows).moved(image, **change)
