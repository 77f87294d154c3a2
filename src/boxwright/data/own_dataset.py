"""Data of a caller's own: a collection of samples, or one of torchvision's detection data sets."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import BoxwrightError, DataError
from boxwright.data.coco_masks import decode_mask
from boxwright.data.dataset import Dataset
from boxwright.data.image_io import encode_png, upright_by_size
from boxwright.data.reading import checked_sample
from boxwright.types import Categories, Category, Sample
from boxwright.types.pixels import (
    ValueRange,
    choose_white_level,
    exif_orientation,
    pixel_kind,
    read_pil,
    to_hwc,
    to_levels,
)


class Collection(Protocol):
    """Samples, or pairs of image and target, by index."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return one."""
        ...


def as_dataset(own: Dataset | Collection, categories: Categories | None = None, white_level: float = 0.0) -> OwnDataset:
    """Return a data set of a caller's own collection.

    Items are `Sample`s, or torchvision's pairs of an image and a target: a dictionary with `boxes` (xyxy in pixels) and
    `labels` (from 1), as its detectors take, and `masks` and `keypoints` if it has them; a list of COCO annotations, as
    of `CocoDetection`; or VOC's annotation, as of `VOCDetection`. Images are PIL images, arrays or tensors, of a scale
    that `types.pixels` knows: a few are read to choose it.

    Args:
        categories: The classes; by default the collection's `categories`, or those of `CocoDetection`'s `coco`.
        white_level: The value that is white in images of floats and of more than 8 bits; 0 to judge by some of them.

    Raises:
        DataError: If it is no collection, is empty, its classes are unknown, or its images follow no convention.
    """
    if not (hasattr(own, "__len__") and hasattr(own, "__getitem__")) or isinstance(own, (str, bytes, Mapping)):
        raise DataError(f"dataset: expected samples by index with a length, found {type(own).__name__}")
    if not len(own):
        raise DataError("dataset: it has no samples")
    known = categories or getattr(own, "categories", None) or _read_coco_categories(own)
    if not isinstance(known, Categories):
        raise DataError(
            "dataset: its classes are unknown; give it an attribute `categories`, or set "
            "train_input_reader.label_map_path in the configuration"
        )
    dataset = OwnDataset(own, known, white_level)
    return dataset if white_level else dataset.measured()


def _read_coco_categories(own: Any) -> Categories | None:
    classes = getattr(_coco(own), "cats", None)
    if not classes:
        return None
    rows = sorted(classes.values(), key=lambda row: int(row["id"]))
    return Categories(tuple(Category(n, int(row["id"]), str(row["name"])) for n, row in enumerate(rows)))


def _coco(own: Any) -> Any:
    """Return the COCO file of `CocoDetection`, of a subset of it, or of a wrapper for transforms; else None."""
    return getattr(own, "coco", None) or getattr(getattr(own, "dataset", None), "coco", None)


class OwnDataset:
    """A caller's collection as a data set; an item that is no sample is a DataError that names it.

    Attributes:
        white_level: The value that is white in images of floats and of more than 8 bits; 0 if there are none.
        white_note: A line about it, if it was chosen by the images; else empty.
        load_masks: Whether masks of COCO's annotations, which take long to draw, are drawn.
    """

    load_masks = True

    def __init__(self, own: Collection, categories: Categories, white_level: float = 0.0) -> None:
        """Wrap a collection, whose items are read when they are asked for."""
        self._own, self._categories = own, categories
        self._names = {category.name: category.label for category in categories}
        self._ids = {category.id: category.label for category in categories}
        self._coco = _coco(own)
        annotations = list((getattr(self._coco, "anns", None) or {}).values())
        # Of all images or of none: a batch has masks, or points, only if all of its images do.
        self._has_masks = any(row.get("segmentation") for row in annotations)
        self._num_keypoints = max((len(row.get("keypoints", ())) // 3 for row in annotations), default=0)
        self.white_level, self.white_note = white_level, ""

    @property
    def name(self) -> str:
        """The collection's type."""
        return type(self._own).__name__

    @property
    def categories(self) -> Categories:
        """The classes."""
        return self._categories

    def __len__(self) -> int:
        return len(self._own)

    def measured(self) -> OwnDataset:
        """Return the data set with the white level that some of its images have.

        Raises:
            DataError: If they follow no convention.
        """
        dataset = copy.copy(self)
        ranges = [item for item in map(self._range, spread_evenly(len(self), _FEW)) if item is not None]
        if any(item.kind != "bytes" for item in ranges):
            ranges = [item for item in map(self._range, spread_evenly(len(self), _MANY)) if item is not None]
        dataset.white_level, dataset.white_note = choose_white_level(ranges, self.name)
        return dataset

    def _range(self, index: int) -> ValueRange | None:
        try:
            item = self._own[index]
            image = item.image if isinstance(item, Sample) else item[0]
            values = self._read_image(image, index)
        except Exception:  # noqa: BLE001  # training reads the item again, and names it with its error
            return None
        return ValueRange.measure(values)

    def __getitem__(self, index: int) -> Sample:
        item = self._own[index]
        where = f"{self.name}: sample {index}"
        try:
            sample = self._convert(item, index)
        except BoxwrightError:
            raise
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
            raise DataError(f"{where}: {type(error).__name__}: {error}") from None
        # A label outside the classes would otherwise be found only by an index error on the device.
        unknown = sorted(set(sample.labels.tolist()) - {category.label for category in self._categories})
        if unknown:
            raise DataError(f"{where}: {self._explain_label(unknown[0], item)}")
        return checked_sample(sample, where)

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the bytes of one image, encoded as PNG."""
        sample = self[index]
        return encode_png(np.clip(sample.image, 0, 255).astype(np.uint8)), sample.id or str(index)

    def _convert(self, item: Any, index: int) -> Sample:
        if isinstance(item, Sample):
            image = self._levels(item.image, index)
            return item if image is item.image else replace(item, image=image)
        if not isinstance(item, Sequence) or isinstance(item, (str, bytes)) or len(item) != 2:
            raise TypeError(f"expected a Sample, or an image with its target, found {type(item).__name__}")
        image, target = self._levels(item[0], index), item[1]
        if isinstance(target, Mapping) and "annotation" in target:
            fields = self._read_voc_objects(target["annotation"])
        elif isinstance(target, Mapping):
            fields = _read_torchvision_objects(target, image.shape[:2])
            if self._coco is not None:  # torchvision's wrapper for transforms leaves COCO's ids
                ids = (fields["labels"] + 1).tolist()
                fields["labels"] = np.array([self._coco_label(number) for number in ids], np.int64)
        else:
            fields = self._read_coco_objects(target, image.shape[:2], f"{self.name}: sample {index}")
        return Sample(image, **fields)

    def _read_image(self, image: Any, index: int) -> NDArray[Any]:
        """Return an image's values, [H, W, C], upright."""
        where = f"{self.name}: sample {index}: the image"
        # A PIL image, of whatever release or subclass.
        if hasattr(image, "convert"):
            declared, stored = self._declared_size(index), (image.height, image.width)
            by_size = upright_by_size(stored, exif_orientation(image), declared)
            return to_hwc(read_pil(image, upright=by_size is not False), where)
        if isinstance(image, np.ndarray) and image.ndim == 3 and _is_of_many_channels(image.shape):
            return image
        if not isinstance(image, np.ndarray) and not hasattr(image, "detach"):
            raise DataError(f"{where}: expected a PIL image, an array or a tensor, found {type(image).__name__}")
        return to_hwc(_channels_last(image), where)

    def _levels(self, image: Any, index: int) -> NDArray[Any]:
        """Return an image in 0..255: uint8, or float32 if it is on that scale already."""
        values = self._read_image(image, index)
        if values.dtype == np.uint8:
            return values if values.flags.c_contiguous or values is image else np.ascontiguousarray(values)
        where = f"{self.name}: sample {index}: the image"
        if not self.white_level:
            self._refuse_unmeasured(values, where)
        if values.dtype == np.float32 and self.white_level == 255:
            to_levels(values, self.white_level, where)
            return np.ascontiguousarray(values)
        return np.ascontiguousarray(to_levels(values, self.white_level, where))

    def _refuse_unmeasured(self, values: NDArray[Any], where: str) -> None:
        if pixel_kind(values.dtype) is not None and values.any():
            raise DataError(
                f"{where}: {ValueRange.measure(values)} among images of uint8 or black ones; convert it, or state what "
                "is white: train_input_reader.white_level"
            )

    def _declared_size(self, index: int) -> tuple[int, int] | None:
        """Return the (height, width) that `CocoDetection`'s annotations state, if they do."""
        images, ids = getattr(self._coco, "imgs", None), getattr(self._own, "ids", None)
        if not images or ids is None or index >= len(ids):
            return None
        row = images.get(ids[index], {})
        return (int(row["height"]), int(row["width"])) if row.get("height") and row.get("width") else None

    def _explain_label(self, label: int, item: Any) -> str:
        """Return what is wrong about a label that no class has, as the item says it."""
        names = ", ".join(f"{category.label} {category.name}" for category in self._categories)
        if isinstance(item, Sample):
            return f"label {label}, but the classes are {names}; labels of a Sample start at 0"
        names = ", ".join(f"{category.label + 1} {category.name}" for category in self._categories)
        hint = "; 0 is torchvision's background: drop those boxes, or count labels from 1" if label == -1 else ""
        return f"label {label + 1}, but the classes are {names}{hint}"

    def _read_coco_objects(self, rows: Any, size: tuple[int, ...], where: str) -> dict[str, Any]:
        """Return the fields of the objects of COCO's annotations, whose boxes are x, y, width, height."""
        if isinstance(rows, (str, bytes)) or not isinstance(rows, Sequence):
            raise TypeError(f"expected a dictionary or a list of COCO's annotations, found {type(rows).__name__}")
        boxes = np.array([row["bbox"] for row in rows], np.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        fields: dict[str, Any] = {
            "boxes": boxes,
            "labels": np.array([self._coco_label(row["category_id"]) for row in rows], np.int64),
            "is_crowd": np.array([row.get("iscrowd", 0) for row in rows], np.bool_),
        }
        if rows and all("area" in row for row in rows):
            fields["areas"] = np.array([row["area"] for row in rows], np.float32)
        if self._has_masks and self.load_masks:
            fields["masks"] = np.zeros((len(rows), *size[:2]), np.uint8)
            for mask, row in zip(fields["masks"], rows, strict=True):
                if row.get("segmentation"):
                    mask[:] = decode_mask(row["segmentation"], (size[0], size[1]), where)
        if self._num_keypoints:
            points = np.zeros((len(rows), self._num_keypoints * 3), np.float32)
            for values, row in zip(points, rows, strict=True):
                values[: len(row.get("keypoints", ()))] = row.get("keypoints", ())
            fields["keypoints"] = _keypoints(points.reshape(len(rows), self._num_keypoints, 3), len(rows))
        return fields

    def _coco_label(self, category_id: Any) -> int:
        label = self._ids.get(int(category_id))
        if label is None:
            known = ", ".join(f"{category.id} {category.name}" for category in self._categories)
            raise ValueError(f"category_id {category_id}, but the classes are {known}")
        return label

    def _read_voc_objects(self, annotation: Any) -> dict[str, Any]:
        """Return the fields of the objects of a VOC annotation."""
        objects = annotation.get("object", [])
        sides = ("xmin", "ymin", "xmax", "ymax")
        corners = [[float(item["bndbox"][side]) for side in sides] for item in objects]
        unknown = next((item["name"] for item in objects if item["name"] not in self._names), None)
        if unknown is not None:
            raise ValueError(f"class {unknown!r}, but the classes are {', '.join(self._names)}")
        return {
            "boxes": np.array(corners, np.float32).reshape(-1, 4),
            "labels": np.array([self._names[item["name"]] for item in objects], np.int64),
            "difficult": np.array([int(item.get("difficult") or 0) for item in objects], np.bool_),
        }


# Images that are read to choose a scale: of data that seem to be uint8, and of others.
_FEW, _MANY = 16, 64


def spread_evenly(total: int, most: int) -> list[int]:
    """Return some indices, evenly over all."""
    return sorted({number * total // most for number in range(most)}) if total > most else list(range(total))


_OF_COLORS = (1, 3, 4)
_MOST_OF_COLORS, _FEW_CHANNELS = 4, 32


def _is_of_many_channels(shape: tuple[int, ...]) -> bool:
    """Whether an array has more channels than colors, last."""
    return _MOST_OF_COLORS < shape[2] <= _FEW_CHANNELS and shape[0] > _MOST_OF_COLORS


def _channels_last(image: Any) -> Any:
    """Return an array [C, H, W], which cannot be [H, W, C], as that; anything else as it is."""
    if isinstance(image, np.ndarray) and image.ndim == 3 and image.shape[2] not in _OF_COLORS:
        return image.transpose(1, 2, 0) if image.shape[0] in _OF_COLORS else image
    return image


def _read_torchvision_objects(target: Mapping[Any, Any], size: tuple[int, ...]) -> dict[str, Any]:
    """Return the fields of the objects of a target of torchvision's detectors, which reserve label 0."""
    missing = [name for name in ("boxes", "labels") if name not in target]
    if missing:
        raise ValueError(f"the target has no {missing[0]!r}, only {', '.join(map(str, target)) or 'nothing'}")
    boxes, labels = np.asarray(target["boxes"], np.float32), np.asarray(target["labels"])
    if labels.dtype.kind in "US" or labels.dtype == object:
        raise ValueError(
            f"labels are {labels.reshape(-1)[:3].tolist()}; expected numbers from 1, in the order of the classes"
        )
    if boxes.size and (boxes.ndim != 2 or boxes.shape[1] != 4):
        raise ValueError(f"boxes: expected [N, 4], x_min, y_min, x_max, y_max, found shape {boxes.shape}")
    boxes, labels = boxes.reshape(-1, 4), labels.reshape(-1)
    if len(boxes) != len(labels):
        raise ValueError(f"{len(boxes)} boxes, but {len(labels)} labels")
    fields: dict[str, Any] = {
        "boxes": boxes,
        "labels": labels.astype(np.int64) - 1,
        "is_crowd": np.asarray(target.get("iscrowd", np.zeros(len(labels))), np.bool_),
    }
    if target.get("masks") is not None:
        fields["masks"] = _masks(np.asarray(target["masks"]), len(labels), size)
    if target.get("keypoints") is not None:
        fields["keypoints"] = _keypoints(np.asarray(target["keypoints"], np.float32), len(labels))
    return fields


def _masks(masks: NDArray[Any], count: int, size: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return masks as uint8 [N, H, W] of 0 and 1."""
    if not count and not masks.size:
        return np.zeros((0, *size[:2]), np.uint8)
    if masks.shape != (count, *size[:2]):
        raise ValueError(f"masks: expected [{count}, {size[0]}, {size[1]}], as boxes and image, found {masks.shape}")
    return (masks > 0).astype(np.uint8)


def _keypoints(points: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Return keypoints as float32 [N, P, 3]; visibility 1 (hidden, in COCO) and 2 (visible) are annotated."""
    if points.ndim != 3 or points.shape[0] != count or points.shape[2] != 3:
        raise ValueError(f"keypoints: expected [{count}, points, 3] of x, y and visibility, found {points.shape}")
    return np.concatenate([points[..., :2], (points[..., 2:] > 0).astype(np.float32)], -1)
