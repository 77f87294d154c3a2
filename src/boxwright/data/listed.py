"""A subset of a data set by a list of samples: how data that come without splits are split reproducibly.

Each line of the list is a sample's index and its file name, such as `17 raccoon-25.jpg`; `#` starts a comment line.
The names are compared as samples are read, which detects data that changed since the split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from boxwright.base.errors import DataError
from boxwright.base.files import read_file
from boxwright.base.text import is_count
from boxwright.data.dataset import Dataset, shard_sizes, with_white_level
from boxwright.types import Categories, Sample


def _unchanged(sample: Sample) -> Sample:
    return sample


class ListedDataset:
    """The samples of a data set that a list names, in the list's order."""

    def __init__(
        self,
        dataset: Dataset,
        rows: Sequence[tuple[int, str]],
        path: str | Path,
        change: Callable[[Sample], Sample] = _unchanged,
    ) -> None:
        """Keep the list.

        Args:
            rows: Indices and file names, as `read_sample_list` returns them.
            path: Where the list was read from, for messages.
            change: Applied to each sample that is read.

        Raises:
            DataError: If the list names a sample that does not exist.
        """
        self._dataset, self._rows, self.path, self._change = dataset, list(rows), Path(path), change
        beyond = next((number for number, _ in self._rows if number >= len(dataset)), None)
        if beyond is not None:
            raise DataError(
                f"{path}: sample {beyond}, but {dataset.name} has {len(dataset)}; the data changed since they were "
                "split: split them again with boxwright init"
            )
        self.name = f"{dataset.name} ({self.path.name})"

    @property
    def white_level(self) -> float:
        """The value that is white in images that are not of 8 bits, of data that have one; else an AttributeError."""
        return self._dataset.white_level  # type: ignore[attr-defined, no-any-return]  # as said

    @white_level.setter
    def white_level(self, level: float) -> None:
        self._dataset = with_white_level(self._dataset, level)

    @property
    def whole(self) -> Dataset:
        """The data set that the list is of."""
        return self._dataset

    @property
    def indices(self) -> list[int]:
        """The listed samples' indices in the whole data set."""
        return [number for number, _ in self._rows]

    @property
    def categories(self) -> Categories:
        """The classes."""
        return self._dataset.categories

    @property
    def shard_sizes(self) -> tuple[tuple[int, ...], ...]:
        """The number of listed samples of each file that is read in sequence; empty if none is, or by the list's order.

        All are of one source, as the list's are.
        """
        ends = np.cumsum([size for files in shard_sizes(self._dataset) for size in files])
        indices = np.array(self.indices)
        if not len(ends) or np.any(np.diff(indices) < 0):
            return ()
        return (tuple(np.diff(np.searchsorted(indices, ends), prepend=0).tolist()),)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        """Return one sample.

        Raises:
            DataError: If it cannot be read, or is not the one that the list names.
        """
        number, name = self._rows[index]
        sample = self._dataset[number]
        self._check(number, name, sample.filename)
        return self._change(sample)

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the image file's bytes and its name."""
        number, name = self._rows[index]
        data, filename = self._dataset.encoded(number)
        self._check(number, name, filename)
        return data, filename

    def _check(self, number: int, listed: str, filename: str) -> None:
        # Names are compared without their folders, so that the data may move.
        if listed and filename and _to_one_line(filename) != listed:
            raise DataError(
                f"{self.path}: sample {number} is {Path(filename).name}, and was {listed} when the data were split; "
                "split them again with boxwright init"
            )


def read_sample_list(path: str | Path) -> list[tuple[int, str]]:
    """Return the indices and names in a list of samples; a name may be empty.

    Raises:
        DataError: If a line is malformed, an index is repeated, or the list is empty.
    """
    rows: list[tuple[int, str]] = []
    for place, line in enumerate(read_file(path).decode("utf-8", "replace").splitlines(), start=1):
        number, _, name = line.strip().partition(" ")
        if not number or number.startswith("#"):
            continue
        if not is_count(number) or len(number) > 11:
            raise DataError(f"{path}: line {place}: expected a number and a file's name, found {line[:60]!r}")
        rows.append((int(number), name.strip()))
    if not rows:
        raise DataError(f"{path}: the list is empty")
    if len({number for number, _ in rows}) < len(rows):
        raise DataError(f"{path}: a sample is listed twice")
    return rows


def sample_list_text(rows: Sequence[tuple[int, str]], comment: str) -> str:
    """Return the text of a list of samples, under a comment."""
    lines = [f"# {comment}", *(f"{number} {_to_one_line(name)}".rstrip() for number, name in rows)]
    return "".join(f"{line}\n" for line in lines)


def _to_one_line(name: str) -> str:
    """Return a file's name in a form that fits on one line."""
    return "".join(" " if c in "\0" or c.splitlines() != [c] else c for c in Path(name).name).strip()
