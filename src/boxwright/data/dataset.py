"""What every source of samples offers."""

from __future__ import annotations

from typing import Protocol

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

    @property
    def parts(self) -> tuple[int, ...]:
        """How many samples each source has (a path that a reader names); they follow one another."""
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
