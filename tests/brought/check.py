"""Reading what is brought as the commands do, and holding every box against the color under it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.account import take_account
from boxwright.data.dataset import Dataset
from boxwright.data.open_dataset import open_recognized
from boxwright.data.recognize import recognize
from boxwright.types import Sample
from tests.brought.pictures import CLASSES, COLORS

# Of a channel. A rectangle's own pixels vary by less; JPEG's blurred colors beside it differ by more.
_WITHIN, _BEYOND = 80, 45
_PIXELS = 2


@dataclass(frozen=True)
class Opened:
    """Data as they were read.

    Attributes:
        datasets: Of training and, if there is a split, of evaluation.
        lines: What was said while they were opened and read: notes, lines of the log, and warnings.
    """

    datasets: tuple[Dataset, ...]
    lines: list[str]

    @property
    def said(self) -> str:
        return "\n".join(self.lines)


def opened(path: Path, *, allow_paths_outside: bool = False, ignore_exif: bool = False) -> Opened:
    """Return data as `recognize` and `open_recognized` read them.

    Raises:
        DataError: If the data are refused.
    """
    lines: list[str] = []
    with _heard(lines):
        recognized = recognize(path, allow_paths_outside=allow_paths_outside, ignore_exif=ignore_exif)
        training, held_out = open_recognized(recognized)
        datasets = (training,) if held_out is None else (training, held_out)
        accounts = [line for dataset in datasets for line in take_account(dataset).lines()[2:]]
    return Opened(datasets, [*recognized.notes, *accounts, *lines])


def count_on_colors(data: Opened, classes: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the number of boxes of all samples, each on its class's color, and the errors of samples without any.

    Raises:
        DataError: If not one sample can be read: the first one's error.
    """
    samples, problems = _readable(data)
    counts = [_boxes_of_sample(sample, dataset, classes or {}) for sample, dataset in samples]
    return sum(counts), problems


def count_of_all(data: Opened) -> tuple[int, str]:
    """Return the same without a look at the boxes, for data that must be refused; a `DataError` as there."""
    samples, problems = _readable(data)
    return sum(len(sample.boxes) for sample, _ in samples), problems


def _readable(data: Opened) -> tuple[list[tuple[Sample, Dataset]], str]:
    """Return the samples that can be read, each with its data set, and the errors of the others."""
    problems: list[DataError] = []
    samples = []
    with _heard(data.lines):
        for dataset, index in ((one, index) for one in data.datasets for index in range(len(one))):
            try:
                samples.append((dataset[index], dataset))
            except DataError as error:
                problems.append(error)
    if not samples and problems:
        raise problems[0]
    return samples, "\n".join(map(str, problems))


def boxes_on_their_colors(dataset: Dataset, classes: Mapping[str, str] | None = None) -> int:
    """Return the number of a data set's boxes; each is asserted to cover a rectangle of its class's color.

    Args:
        classes: The color of each class, where its name tells none.
    """
    return sum(_boxes_of_sample(dataset[index], dataset, classes or {}) for index in range(len(dataset)))


def _boxes_of_sample(sample: Sample, dataset: Dataset, classes: Mapping[str, str]) -> int:
    """Return the number of boxes without regions to ignore, after a look at each."""
    image = np.asarray(sample.image)
    count = 0
    for box, label, crowd in zip(sample.boxes, sample.labels, sample.is_crowd, strict=True):
        if crowd:
            continue
        name = dataset.categories.by_label(int(label)).name
        problem = _problem(image, [float(side) for side in box], color_of(name, classes))
        assert not problem, f"{dataset.name}: {sample.id!r} ({sample.filename!r}): {name} at {box.tolist()}: {problem}"
        count += 1
    return count


def color_of(name: str, classes: Mapping[str, str]) -> tuple[int, int, int]:
    """Return the color of a class: by its name, or its number from 0."""
    plain = classes.get(name, name).strip().lower()
    return COLORS[CLASSES[int(plain)] if plain.isdigit() else plain]


def _problem(image: NDArray[Any], box: list[float], color: tuple[int, int, int]) -> str:
    """Return what is wrong with a box: its center has another color, or an edge is off the rectangle's; else nothing."""
    x1, y1, x2, y2 = box
    height, width = image.shape[:2]
    if not (0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height):
        return f"not within {width}×{height}"
    difference = np.abs(image.astype(int) - color).max(-1)
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    if difference[int(y), int(x)] > _WITHIN:
        return f"its center is {image[int(y), int(x)].tolist()}, not {list(color)}"
    edges = {"left": (x1, y, 1, 0), "right": (x2, y, -1, 0), "top": (x, y1, 0, 1), "bottom": (x, y2, 0, -1)}
    for edge, (px, py, dx, dy) in edges.items():
        # Whole pixels that lie inside and outside of the edge by more than the tolerance.
        if difference[_pixel(py, dy, _PIXELS), _pixel(px, dx, _PIXELS)] > _WITHIN:
            return f"the rectangle begins within its {edge} edge"
        row, column = _pixel(py, -dy, _PIXELS), _pixel(px, -dx, _PIXELS)
        if 0 <= row < height and 0 <= column < width and difference[row, column] <= _BEYOND:
            return f"the rectangle goes on beyond its {edge} edge"
    return ""


def _pixel(place: float, direction: int, distance: int) -> int:
    """Return the pixel beyond a place by a distance in a direction along one axis."""
    if not direction:
        return int(place)
    return int(np.floor(place + distance)) if direction > 0 else int(np.ceil(place - distance)) - 1


@contextmanager
def _heard(lines: list[str]) -> Iterator[None]:
    """Add the package's log, and warnings, to a list."""
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("boxwright")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield
        lines.extend(str(warning.message) for warning in warned)
    finally:
        logger.removeHandler(handler)
