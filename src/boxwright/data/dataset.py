"""The interface of every source of samples."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from boxwright.data.pixel_cache import PixelCache
from boxwright.types import Categories, Sample


class Dataset(Protocol):
    """Samples by index, with their classes. Reading a sample has no side effects."""

    @property
    def name(self) -> str:
        """Where the samples come from, for messages."""
        ...

    @property
    def categories(self) -> Categories:
        """The classes."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int) -> Sample:
        """Return one sample.

        Raises:
            DataError: If it cannot be read; with file and position.
        """
        ...

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the bytes of one image file as stored, and its name."""
        ...


@runtime_checkable
class MultiSourceDataset(Protocol):
    """A data set that concatenates several sources, such as the paths of a reader."""

    @property
    def source_sizes(self) -> tuple[int, ...]:
        """The number of samples of each source."""
        ...


@runtime_checkable
class ShardedDataset(Protocol):
    """A data set of which samples that follow one another are read together, at the cost of one."""

    @property
    def shard_sizes(self) -> tuple[tuple[int, ...], ...]:
        """By source, the number of samples of each file; empty if each sample is read by itself."""
        ...


@runtime_checkable
class DecodingDataset(Protocol):
    """A data set that decodes a picture for each sample, which is a file or a part of one.

    Attributes:
        pixels: Keeps decoded pictures; None if each is decoded whenever it is read.
    """

    pixels: PixelCache | None

    @property
    def at_address(self) -> bool:
        """Whether files are fetched from an address as they are read."""
        ...

    @property
    def read_as(self) -> str:
        """What pixels depend on besides their file."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def picture(self, index: int) -> tuple[Path, tuple[int, int]]:
        """Return the file of a sample's picture, and the (height, width) of its image, by the picture's header.

        Raises:
            DataError: If the picture is missing or none.
        """
        ...


@runtime_checkable
class ScaledDataset(Protocol):
    """A data set whose images may be of floats, or of more than 8 bits.

    Attributes:
        white_level: The value that is white in such images; 0 if none is stated.
    """

    white_level: float


def with_white_level(dataset: Dataset, level: float) -> Dataset:
    """Return a data set that reads images by a white level; the same one if it has it, or its images have no other."""
    if not isinstance(dataset, ScaledDataset) or dataset.white_level == level:
        return dataset
    scaled: Any = copy.copy(dataset)
    scaled.white_level = level
    return cast(Dataset, scaled)


def source_sizes(dataset: Dataset) -> tuple[int, ...]:
    """Return the number of samples of each source of a data set."""
    return dataset.source_sizes if isinstance(dataset, MultiSourceDataset) else (len(dataset),)


def shard_sizes(dataset: Dataset) -> tuple[tuple[int, ...], ...]:
    """Return by source the number of samples of each file that is read in sequence; empty if none is."""
    return dataset.shard_sizes if isinstance(dataset, ShardedDataset) else ()
