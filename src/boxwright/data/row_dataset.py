"""Samples from shards of pictures with their objects: WebDataset's archives, and Parquet."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.coco_masks import check_mask_memory, decode_mask
from boxwright.data.image_io import decode_image
from boxwright.data.objects import Objects, PictureRow, read_objects
from boxwright.data.parquet import ParquetShard
from boxwright.data.picture_dataset import BoxesAre
from boxwright.data.reading import checked_sample, read_keypoints, reading
from boxwright.data.shard_files import ShardFile, ShardFiles
from boxwright.data.web_dataset import WebDatasetShard
from boxwright.types import Categories, Category, Sample


class RowFile(ShardFile, Protocol):
    """A file of pictures with their objects."""

    def __getitem__(self, number: int) -> PictureRow:
        """Return one of them."""
        ...


class RowDataset:
    """Samples of one or more shards, which are read in sequence.

    Attributes:
        boxes_are: What the four numbers of a box are.
        white_level: The value that is white in pictures of more than 8 bits; 0 for that of 16 bits.
    """

    white_level: float = 0.0

    def __init__(
        self,
        shards: ShardFiles[RowFile],
        categories: Categories,
        boxes_are: BoxesAre = "xywh",
        *,
        ignore_exif: bool = False,
        load_masks: bool = False,
        num_keypoints: int | None = 0,
    ) -> None:
        """Keep the shards.

        Args:
            boxes_are: What the four numbers of a box are.
            ignore_exif: Whether pixels stay as stored where no size shows that boxes refer to the upright picture.
            load_masks: Whether samples have masks; then every object needs an outline.
            num_keypoints: Keypoints per object, of all classes; 0 to skip them, None for as many as the classes name.

        Raises:
            DataError: If all shards are empty.
        """
        self.shards, self.categories, self.name = shards, categories, shards.name
        self.boxes_are, self._ignore_exif, self._load_masks = boxes_are, ignore_exif, load_masks
        self._num_keypoints = self._count_keypoints(num_keypoints)
        if not len(shards):
            raise DataError(f"{self.name}: no pictures")

    @property
    def source_sizes(self) -> tuple[int, ...]:
        """The number of samples of each source."""
        return self.shards.source_sizes

    @property
    def shard_sizes(self) -> tuple[tuple[int, ...], ...]:
        """By source, the number of samples of each shard."""
        return self.shards.shard_sizes

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, index: int) -> Sample:
        """Return one sample.

        Raises:
            DataError: If it cannot be read, or has no annotation.
        """
        file, number = self.shards.locate(index)
        where = file.where(number)
        with reading(where):
            row = file[number]
            objects = read_objects(row.values.get("objects"), f"{where}: objects")
            declared = _declared_size(row.values)
            image = decode_image(
                row.data, where, upright=not self._ignore_exif, declared=declared, white_level=self.white_level
            )
            labels = np.array([self._label(name, row.class_names, where) for name in objects.classes], np.int64)
            boxes = _as_corners(objects.boxes, self.boxes_are, image.shape)
            known = labels >= 0
            sample = Sample(
                image=image,
                boxes=boxes[known],
                labels=labels[known],
                is_crowd=np.array(objects.crowds, np.bool_)[known],
                difficult=np.array(objects.difficult, np.bool_)[known],
                areas=_areas(objects, boxes)[known],
                masks=self._masks(objects, known, image.shape, where) if self._load_masks else None,
                keypoints=self._keypoints(objects, labels, where)[known] if self._num_keypoints else None,
                left_out=int((~known).sum()),
                id=str(row.values.get("image_id") or f"{file.path.name}:{number}"),
                filename=_filename(row),
            )
            return checked_sample(sample, where)

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the image file's bytes and its name.

        Raises:
            DataError: If it cannot be read.
        """
        file, number = self.shards.locate(index)
        with reading(file.where(number)):
            row = file[number]
            return row.data, _filename(row) or f"{index:06d}"

    def _label(self, named: int | str, names: Sequence[str], where: str) -> int:
        """Return the label of a class by its name or number; -1, with a warning, if it is not among the classes."""
        if isinstance(named, int) and names:
            if not 0 <= named < len(names):
                raise DataError(f"{where}: class {named}: expected 0 to {len(names) - 1}")
            named = names[named]
        by_id = isinstance(named, int)
        category = self.categories.by_id(named) if isinstance(named, int) else self.categories.by_any_name(named)
        if category is None:
            what = f"id {named}" if by_id else f"class {named!r}"
            warnings.warn(f"{self.name}: {what} is not in the label map; its boxes are dropped", stacklevel=4)
            return -1
        return category.label

    def _count_keypoints(self, wanted: int | None) -> int:
        """Return how many keypoints an object has."""
        named = max((index + 1 for item in self.categories for index in item.keypoint_indices), default=0)
        if wanted and named > wanted:
            raise DataError(f"{self.name}: its classes have {named} keypoints, but num_keypoints is {wanted}")
        return named if wanted is None else wanted

    def _keypoints(self, objects: Objects, labels: NDArray[np.int64], where: str) -> NDArray[np.float32]:
        """Return the objects' keypoints [N, P, 3]; of those without, all are invisible."""
        points = np.zeros((len(labels), self._num_keypoints, 3), np.float32)
        for number, (label, given) in enumerate(zip(labels.tolist(), objects.keypoints, strict=True)):
            if label < 0 or given is None:
                continue
            # A class whose points have no names has all of them, in order.
            indices = self.categories.by_label(label).keypoint_indices or range(self._num_keypoints)
            place = f"{where}: objects: keypoints of object {number}"
            with np.errstate(over="ignore"):  # `checked_sample` refuses what is infinite
                points[number, list(indices)] = read_keypoints(given, len(indices), place)
        return points

    @staticmethod
    def _masks(objects: Objects, known: NDArray[np.bool_], shape: tuple[int, ...], where: str) -> NDArray[np.uint8]:
        """Return the masks of the objects of known classes, [N, H, W]."""
        chosen = np.flatnonzero(known).tolist()
        size = (shape[0], shape[1])
        check_mask_memory(len(chosen), size, where)
        masks = np.zeros((len(chosen), *size), np.uint8)
        for mask, number in zip(masks, chosen, strict=True):
            place, outline = f"{where}: object {number}", objects.outlines[number]
            if not outline:
                raise DataError(f"{place} has no segmentation, which load_instance_masks asks for")
            mask[:] = decode_mask(outline, size, place)
        return masks


def _areas(objects: Objects, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the area of each object: as stated, else of its box."""
    with np.errstate(over="ignore"):  # `checked_sample` refuses what is infinite
        of_boxes = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1)
    pairs = zip(objects.areas, of_boxes.tolist(), strict=True)
    return np.array([of_box if stated is None else stated for stated, of_box in pairs], np.float32)


def _filename(row: PictureRow) -> str:
    """Return the name of a picture: the one that its annotation states, else that of its file."""
    stated = row.values.get("file_name")
    return stated if isinstance(stated, str) and stated else row.filename


def _declared_size(values: dict[str, Any]) -> tuple[int, int] | None:
    height, width = values.get("height"), values.get("width")
    return (height, width) if isinstance(height, int) and isinstance(width, int) else None


def _as_corners(boxes: list[list[float]], are: BoxesAre, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return boxes as corners in pixels."""
    corners = np.array(boxes, np.float64).reshape(-1, 4)
    if are in ("xywh", "normalized_xywh"):
        # In float64, so that a conversion to corners and back returns the same numbers.
        corners[:, 2:] += corners[:, :2]
    if are in ("normalized_xywh", "normalized_xyxy"):
        corners *= (shape[1], shape[0], shape[1], shape[0])
    return corners.astype(np.float32)


def open_web_dataset(paths: Sequence[str | Path], categories: Categories | None = None, **options: Any) -> RowDataset:
    """Open WebDataset's archives.

    Args:
        paths: Paths or addresses, globs, or `name@count`.
        categories: The classes; None for those that all annotations name, which are read, in alphabetical order.
        **options: As of `RowDataset`.

    Raises:
        DataError: If one is missing or damaged, all are empty, or nothing names the classes.
    """
    shards = ShardFiles(paths, WebDatasetShard)
    return RowDataset(shards, categories or _classes_of_archives(shards), **options)


def _classes_of_archives(shards: ShardFiles[WebDatasetShard]) -> Categories:
    names, numbers = set[str](), 0
    for file in shards.files:
        for where, annotation in file.annotations():
            classes = read_objects(annotation.get("objects"), f"{where}: objects").classes
            names.update(name for name in classes if isinstance(name, str))
            numbers += sum(isinstance(name, int) for name in classes)
    if numbers or not names:
        what = f"{numbers} objects have class numbers but no names" if numbers else "there are no objects"
        raise DataError(f"{shards.name}: {what}; put a label_map.pbtxt beside the archives")
    return _numbered(sorted(names))


def _numbered(names: Sequence[str]) -> Categories:
    return Categories(tuple(Category(label, label + 1, name) for label, name in enumerate(names)))


def open_parquet_rows(paths: Sequence[str | Path], categories: Categories | None, **options: Any) -> RowDataset:
    """Open Parquet files.

    Args:
        paths: Paths or addresses, globs, or `name@count`.
        categories: The classes; None for those that the first file names.
        **options: As of `RowDataset`.

    Raises:
        DataError: If one is missing or damaged, all are empty, or nothing names the classes.
    """
    shards = ShardFiles(paths, ParquetShard)
    if categories is None:
        names = shards.files[0].class_names()
        if not names:
            raise DataError(f"{shards.name}: the files name no classes; set label_map_path")
        categories = _numbered(names)
    return RowDataset(shards, categories, **options)
