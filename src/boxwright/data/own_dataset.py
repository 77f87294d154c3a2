"""Data of a caller's own: a collection of samples, or one of torchvision's detection data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.dataset import Dataset
from boxwright.data.image_io import encode_png
from boxwright.types import Categories, Category, Sample


class Collection(Protocol):
    """Samples, or pairs of image and target, by index."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return one."""
        ...


def as_dataset(own: Dataset | Collection, categories: Categories | None = None) -> Dataset:
    """Return a data set of a caller's own collection.

    Items are `Sample`s, or torchvision's pairs of an image (PIL, or a tensor CHW) and a target: a dictionary with
    `boxes` (xyxy in pixels) and `labels` (from 1), as its detectors take; a list of COCO annotations, as of
    `CocoDetection`; or VOC's annotation, as of `VOCDetection`.

    Args:
        categories: The classes; by default the collection's `categories`, or those of `CocoDetection`'s `coco`.

    Raises:
        DataError: If it is no collection, is empty, or its classes are unknown.
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
    return OwnDataset(own, known)


def _read_coco_categories(own: Any) -> Categories | None:
    classes = getattr(getattr(own, "coco", None), "cats", None)
    if not classes:
        return None
    rows = sorted(classes.values(), key=lambda row: int(row["id"]))
    return Categories(tuple(Category(n, int(row["id"]), str(row["name"])) for n, row in enumerate(rows)))


class OwnDataset:
    """A caller's collection as a data set; an item that is no sample is a DataError that names it."""

    def __init__(self, own: Collection, categories: Categories) -> None:
        """Wrap a collection, whose items are read when they are asked for."""
        self._own, self._categories = own, categories
        self._names = {category.name: category.label for category in categories}
        self._ids = {category.id: category.label for category in categories}

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

    def __getitem__(self, index: int) -> Sample:
        item = self._own[index]
        try:
            sample = item if isinstance(item, Sample) else self._convert_pair(item)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise DataError(f"{self.name}: sample {index}: {type(error).__name__}: {error}") from None
        # A label outside the classes would otherwise be found only by an index error on the device.
        unknown = sorted(set(sample.labels.tolist()) - {category.label for category in self._categories})
        if unknown:
            raise DataError(f"{self.name}: sample {index}: label {unknown[0]} is of no class")
        return sample

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the bytes of one image, encoded as PNG."""
        sample = self[index]
        return encode_png(np.clip(sample.image, 0, 255).astype(np.uint8)), sample.id or str(index)

    def _convert_pair(self, item: Any) -> Sample:
        if not isinstance(item, Sequence) or isinstance(item, (str, bytes)) or len(item) != 2:
            raise TypeError(f"expected a Sample, or an image with its target, found {type(item).__name__}")
        image, target = _pixels(item[0]), item[1]
        if isinstance(target, Mapping) and "annotation" in target:
            boxes, labels, crowd = self._read_voc_objects(target["annotation"])
        elif isinstance(target, Mapping):
            # torchvision's detectors reserve label 0 for the background.
            boxes, labels = np.asarray(target["boxes"], np.float32).reshape(-1, 4), np.asarray(target["labels"]) - 1
            crowd = np.asarray(target.get("iscrowd", np.zeros(len(labels))), np.bool_)
        else:
            # COCO's annotations have x, y, width, height.
            boxes = np.array([row["bbox"] for row in target], np.float32).reshape(-1, 4)
            boxes[:, 2:] += boxes[:, :2]
            labels = np.array([self._ids[int(row["category_id"])] for row in target], np.int64)
            crowd = np.array([row.get("iscrowd", 0) for row in target], np.bool_)
        if len(boxes) != len(labels):
            raise ValueError(f"{len(boxes)} boxes, but {len(labels)} labels")
        return Sample(image, boxes, labels.astype(np.int64).reshape(-1), is_crowd=crowd)

    def _read_voc_objects(self, annotation: Any) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
        """Return boxes, labels and crowds."""
        objects = annotation.get("object", [])
        sides = ("xmin", "ymin", "xmax", "ymax")
        corners = [[float(item["bndbox"][side]) for side in sides] for item in objects]
        boxes = np.array(corners, np.float32).reshape(-1, 4)
        labels = np.array([self._names[item["name"]] for item in objects], np.int64)
        return boxes, labels, np.zeros(len(boxes), np.bool_)


def _pixels(image: Any) -> NDArray[np.uint8]:
    """Return an image as uint8 [H, W, 3]; floats are in 0..1, as torchvision has them."""
    # A PIL image, of whatever release or subclass.
    if hasattr(image, "convert"):
        return np.asarray(image.convert("RGB"), np.uint8)
    array = np.asarray(image)
    if array.ndim != 3 or array.shape[0] not in (1, 3):
        raise ValueError(f"expected a PIL image, or a tensor of 1 or 3 channels CHW, found {array.shape}")
    array = np.broadcast_to(array, (3, *array.shape[1:])).transpose(1, 2, 0)
    if array.dtype != np.uint8:
        if not (array.min() >= 0 and array.max() <= 1):
            raise ValueError("floats of an image are in 0..1, as torchvision has them")
        array = np.round(array * 255).astype(np.uint8)
    return np.ascontiguousarray(array)
