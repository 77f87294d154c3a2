"""Samples from shards of pictures with their objects: WebDataset's archives, and Parquet."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.image_io import decode_image
from boxwright.data.objects import PictureRow, read_objects
from boxwright.data.parquet import ParquetShard
from boxwright.data.picture_dataset import BoxesAre
from boxwright.data.reading import checked_sample, reading
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
    ) -> None:
        """Keep the shards.

        Args:
            boxes_are: What the four numbers of a box are.
            ignore_exif: Whether pixels stay as stored where no size shows that boxes refer to the upright picture.

        Raises:
            DataError: If all shards are empty.
        """
        self.shards, self.categories = shards, categories
        self._boxes_are, self._ignore_exif = boxes_are, ignore_exif
        self.name = shards.name
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
            known = labels >= 0
            sample = Sample(
                image=image,
                boxes=_as_corners(objects.boxes, self._boxes_are, image.shape)[known],
                labels=labels[known],
                is_crowd=np.array(objects.crowds, np.bool_)[known],
                left_out=int((~known).sum()),
                id=str(row.values.get("image_id") or f"{file.path.name}:{number}"),
                filename=row.filename,
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
            return row.data, row.filename or f"{index:06d}"

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


def open_web_dataset(paths: Sequence[str | Path], categories: Categories, **options: Any) -> RowDataset:
    """Open WebDataset's archives.

    Args:
        paths: Paths or addresses, globs, or `name@count`.
        **options: As of `RowDataset`.

    Raises:
        DataError: If one is missing or damaged, or all are empty.
    """
    return RowDataset(ShardFiles(paths, WebDatasetShard), categories, **options)


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
        categories = Categories(tuple(Category(label, label + 1, name) for label, name in enumerate(names)))
    return RowDataset(shards, categories, **options)
