"""The interface of every source of samples."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

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


def source_sizes(dataset: Dataset) -> tuple[int, ...]:
    """Return the number of samples of each source of a data set."""
    return dataset.source_sizes if isinstance(dataset, MultiSourceDataset) else (len(dataset),)
