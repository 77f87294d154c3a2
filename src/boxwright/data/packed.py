"""Many short texts in one array: as objects of Python, each process has its own, at ten times the memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PackedBytes:
    """Texts by index; where they are in a mapped file, a process that is not forked maps it too."""

    def __init__(self, text: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        """Keep the texts.

        Args:
            text: All of them, one after the other.
            ends: Where each ends.
        """
        self.text, self.ends = text, ends

    @classmethod
    def of(cls, texts: Iterable[bytes]) -> PackedBytes:
        """Return texts, packed."""
        text, ends = bytearray(), []
        for part in texts:
            text += part
            ends.append(len(text))
        return cls(np.frombuffer(bytes(text), np.uint8), np.array(ends, np.int64))

    def __reduce__(self) -> tuple[Any, ...]:
        """Hand another process the file to map, not its content."""
        return PackedBytes._unpickled, (_picklable(self.text), _picklable(self.ends))

    @classmethod
    def _unpickled(cls, text: Any, ends: Any) -> PackedBytes:
        return cls(*(map_array(*array) if isinstance(array, tuple) else array for array in (text, ends)))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> bytes:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        return self.text[self.ends[index - 1] if index else 0 : self.ends[index]].tobytes()


def _picklable(array: NDArray[Any]) -> Any:
    if not isinstance(array, np.memmap) or array.filename is None:
        return array
    return Path(os.fspath(array.filename)), array.dtype.str, array.offset, len(array)


def map_array(file: Path, kind: str, offset: int, length: int) -> NDArray[Any]:
    """Return an array [length] of a type in a file, from a byte on, mapped into memory."""
    # A file cannot be mapped from its end on.
    return np.memmap(file, kind, "r", offset, (length,)) if length else np.zeros(0, kind)
