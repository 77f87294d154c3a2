"""What every source of samples offers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from boxwright.types import Categories, Sample


class Dataset(Protocol):
    """Samples by index, with their classes. Reading one leaves nothing behind but open files."""

    @property
    def name(self) -> str:
        """Where the samples come from, for messages."""
        ...

    @property
    def categories(self) -> Categories:
        """The classes."""
        ...

    def __len__(self) -> int:
        """Count the samples."""
        ...

    def __getitem__(self, index: int) -> Sample:
        """Read one sample.

        Args:
            index: From 0.

        Raises:
            DataError: Where it cannot be read; with file and place.
        """
        ...

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Read one image as it is stored.

        Args:
            index: From 0.

        Returns:
            The image file's bytes and its name.
        """
        ...


@runtime_checkable
class SeveralSources(Protocol):
    """A data set of several sources, such as the paths that a reader names; their samples follow one another."""

    @property
    def source_sizes(self) -> tuple[int, ...]:
        """How many samples each source has."""
        ...


def source_sizes(dataset: Dataset) -> tuple[int, ...]:
    """Return how many samples each source of a data set has; most are one source."""
    return dataset.source_sizes if isinstance(dataset, SeveralSources) else (len(dataset),)
