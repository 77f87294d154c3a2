"""What the checks are given, samples without their pixels, and what they return, findings.

Dimensions: N objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import BoxwrightError, DataError, first_line
from boxwright.base.text import visible_line
from boxwright.data.dataset import Dataset
from boxwright.data.loader import samples_or_errors

# "fatal": the run cannot succeed; "warning": its results will probably be poor; "note": worth knowing.
Verdict = Literal["fine", "note", "warning", "fatal"]
_SHOWN = 4


@dataclass(frozen=True)
class Finding:
    """A check's result.

    Attributes:
        remedy: What to do; empty if nothing needs to be done.
    """

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.check}: {self.found}" + (f"; {self.remedy}" if self.remedy else "")


def some(items: Sequence[str]) -> str:
    """Return the first items in one line, and how many more there are."""
    more = len(items) - _SHOWN
    return visible_line(", ".join(items[:_SHOWN])) + (f" and {more} more" if more > 0 else "")


# Wraps items to show progress under a title: (title, items).
Progress = Callable[[str, Iterable[int]], Iterable[int]]


@dataclass(frozen=True)
class Record:
    """A sample without its pixels.

    Attributes:
        boxes: float32 [N, 4], xyxy in pixels.
        labels: int64 [N], 0-based.
        crowd: bool [N].
        left_out: Objects of classes that the label map lacks.
        levels: The darkest and the brightest of every fourth pixel, and their mean, in 0..255.
    """

    name: str
    size: tuple[int, int]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    crowd: NDArray[np.bool_]
    left_out: int
    levels: tuple[float, float, float] = (0.0, 255.0, 127.5)


def silent(what: str, items: Iterable[int]) -> Iterable[int]:
    """Return items without showing progress."""
    del what
    return items


def can_be_read(dataset: Dataset, number: int) -> bool:
    """Whether a sample's image and annotations can be read."""
    try:
        dataset[number]
    except DataError:
        return False
    return True


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` of `count` indices, evenly spread; all if `most` is 0."""
    if not most or count <= most:
        return list(range(count))
    return sorted({int(index) for index in np.linspace(0, count - 1, most)})


def read_records(
    dataset: Dataset,
    indices: Sequence[int],
    *,
    workers: int = 0,
    patience: float = 600.0,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> tuple[list[Record], list[str]]:
    """Return samples, and a line for each that cannot be read.

    Args:
        workers: Reading processes; 0 to read in this one.
        patience: Seconds without a sample after which reading stops; the samples until then are returned.
    """
    records, unreadable = [], []
    with closing(samples_or_errors(dataset, indices, workers, patience)) as samples:
        # The stream ends early when no sample has come for `patience` seconds.
        for index, sample in zip(progress(indices), samples, strict=False):
            if isinstance(sample, BoxwrightError):
                unreadable.append(first_line(sample))
                continue
            size = (sample.image.shape[0], sample.image.shape[1])
            name = sample.id or sample.filename or str(index)
            seen = sample.image[::4, ::4]
            levels = (float(seen.min()), float(seen.max()), float(seen.mean()))
            records.append(Record(name, size, sample.boxes, sample.labels, sample.is_crowd, sample.left_out, levels))
    return records, unreadable
