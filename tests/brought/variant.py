"""One variant of what people bring: how it is made, and what must come of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from boxwright.base.errors import DataError
from tests.brought.check import Opened, count_of_all, count_on_colors, opened


@dataclass(frozen=True)
class Variant:
    """What must come of one variant; patterns are searched for without regard to case, but in `(?-i:…)`.

    Attributes:
        make: Writes the data into a folder, and returns the path that a user would give.
        boxes: The number of boxes, each on its object's color; None where the data must be refused.
        refused: A pattern in the error. With a number of boxes too, either will do.
        said: A pattern in what is said while the data are opened.
        problem: A pattern in the errors of single samples, or in what is said; empty where none may have one.
        classes: The color of each class, where its name tells none.
        ids: Some classes' ids.
        difficult: The number of difficult objects.
    """

    make: Callable[[Path], Path]
    boxes: int | None = 10
    refused: str = ""
    said: str = ""
    problem: str = ""
    classes: Mapping[str, str] = field(default_factory=dict)
    ids: Mapping[str, int] = field(default_factory=dict)
    difficult: int = 0
    ignore_exif: bool = False
    allow_paths_outside: bool = False


def hold(variant: Variant, path: Path) -> None:
    """Assert that data of a variant are read, or refused, as it wants.

    Args:
        path: Of the data, as `variant.make` returned it.
    """
    try:
        data = opened(path, allow_paths_outside=variant.allow_paths_outside, ignore_exif=variant.ignore_exif)
        wanted = variant.boxes is not None
        count, problems = count_on_colors(data, variant.classes) if wanted else count_of_all(data)
    except DataError as error:
        if not variant.refused:
            raise
        refusal = _without(path, str(error))
    else:
        _hold_read(variant, path, data, count, problems)
        return
    assert matches(variant.refused, refusal), f"refused without the cause {variant.refused!r}: {refusal}"


def _hold_read(variant: Variant, path: Path, data: Opened, count: int, problems: str) -> None:
    problems = _without(path, problems)
    assert variant.boxes is not None, f"{count} boxes were read of what must be refused ({variant.refused})"
    assert count == variant.boxes, f"expected {variant.boxes} boxes, read {count}; {problems}"
    said = _without(path, data.said)
    assert not variant.said or matches(variant.said, said), f"not said: {variant.said!r}; said: {said}"
    if variant.problem:
        assert matches(variant.problem, f"{said}\n{problems}"), f"not named: {variant.problem!r}: {problems}"
    else:
        assert not problems, problems
    _hold_classes(variant, data)


def _hold_classes(variant: Variant, data: Opened) -> None:
    for dataset in data.datasets:
        ids = {item.name: item.id for item in dataset.categories}
        assert dict(variant.ids).items() <= ids.items(), ids
    if variant.problem:
        return
    samples = [dataset[index] for dataset in data.datasets for index in range(len(dataset))]
    # Regions to ignore are no objects.
    marks = sum(int((sample.difficult & ~sample.is_crowd).sum()) for sample in samples)
    assert marks == variant.difficult, f"{marks} objects are difficult, not {variant.difficult}"


def _without(path: Path, text: str) -> str:
    """Return a text without the path of the data, whose folders' names may have the words that are looked for."""
    for folder in (path, *path.parents[:-1]):
        text = text.replace(str(folder), "")
    return text


def matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE | re.DOTALL) is not None
