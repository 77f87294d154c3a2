"""What a fuzzed reader is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class AcceptedError(AssertionError):
    """An input was accepted, and means something else than what was written."""


@dataclass(frozen=True)
class Reader:
    """A reader.

    Attributes:
        seeds: Good inputs.
        read: Takes bytes and an empty folder.
    """

    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], None]
