"""Reading samples and the text files that describe them: every failure is a `DataError` with place and cause.

All data sets read through here, so that skipping bad samples works for all of them.
"""

from __future__ import annotations

import codecs
import math
import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.base.errors import BoxwrightError, DataError
from boxwright.base.files import cause, read_file, shown
from boxwright.base.limits import COORDINATE
from boxwright.types import Categories, Sample

# Characters of a file's own text in a message: a hostile file may have megabytes there.
_MOST_SHOWN = 60


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn exceptions raised inside into a `DataError`; Boxwright's own errors pass through."""
    try:
        yield
    except BoxwrightError:
        raise
    except MemoryError as error:
        raise DataError(f"{where}: not enough memory") from error
    except OSError as error:
        raise DataError(f"{where}: {cause(error)}") from error
    except Exception as error:  # libraries raise all kinds of exceptions for malformed files
        raise DataError(f"{where}: {type(error).__name__}: {str(error)[:_MOST_SHOWN]}") from error


def checked_sample(sample: Sample, where: str) -> Sample:
    """Return the sample unchanged.

    Raises:
        DataError: For boxes, weights, areas or class scores that are not finite, and boxes, visible points or offsets
            far outside any image.
    """
    for name in ("boxes", "weights", "areas", "class_scores"):
        values = getattr(sample, name)
        if values is not None and not np.isfinite(values).all():
            bad = int(np.argwhere(~np.isfinite(values))[0][0])
            raise DataError(f"{where}: {name} of object {bad} are not finite: {np.asarray(values[bad]).tolist()}")
    if len(sample.boxes):
        worst = int(np.abs(sample.boxes).max(1).argmax())
        if problem := COORDINATE.exceeded(float(np.abs(sample.boxes[worst]).max())):
            raise DataError(f"{where}: box {sample.boxes[worst].tolist()} of object {worst}: {problem}")
    for what, points in (("keypoint", sample.keypoints), ("DensePose's point", sample.dense_pose)):
        if points is not None and points.size:
            farthest = np.abs(np.where(points[..., 2:3] > 0, points[..., :2], 0)).max(-1)
            number, point = np.unravel_index(farthest.argmax(), farthest.shape)
            if problem := COORDINATE.exceeded(float(farthest[number, point])):
                raise DataError(f"{where}: {what} {point} of object {number}: {problem}")
    if sample.temporal_offsets is not None and len(sample.temporal_offsets):
        longest = np.abs(sample.temporal_offsets).max(1)
        if problem := COORDINATE.exceeded(float(longest.max())):
            raise DataError(f"{where}: offset of object {longest.argmax()} from the previous frame: {problem}")
    return sample


def finite_number(value: Any, where: str) -> float:
    """Return a number from a file.

    Raises:
        DataError: If it is not a finite number.
    """
    if isinstance(value, bool | int | float):
        try:
            number = float(value)
        # An integer of more than 308 digits, which JSON allows.
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        raise DataError(f"{where}: expected a finite number, found {str(value)[:_MOST_SHOWN]}")
    raise DataError(f"{where}: expected a number, found {repr(value)[:_MOST_SHOWN]}")


def whole_number(value: Any, where: str) -> int:
    """Return an integer from a file; 3.0 is one.

    Raises:
        DataError: If it is not an integer.
    """
    number = finite_number(value, where)
    if number != int(number):
        raise DataError(f"{where}: expected a whole number, found {value}")
    # int(number) would change ids above 2**53, for which a float has no room.
    return int(value)


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, in UTF-16 with a byte order mark, or else in Windows-1252.

    Raises:
        DataError: If it cannot be read, or is in none of them.
    """
    data = read_file(path)
    try:
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return data.decode("utf-16")
        # Editors on Windows start a file with a byte order mark, which would become part of the first word.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = str(error)
    try:
        return data.decode("cp1252")
    except UnicodeDecodeError:
        raise DataError(f"{shown(path)}: not UTF-8: {problem}") from None


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """Return the number, from 1, and the stripped text of each line of a file that is not blank."""
    return [(number, line.strip()) for number, line in enumerate(read_text(path).splitlines(), start=1) if line.strip()]


def label_of(name: str, categories: Categories, where: object) -> int:
    """Return the label of a class.

    Raises:
        DataError: If the label map does not have it.
    """
    category = categories.by_name(name)
    if category is None:
        known = ", ".join(item.name for item in categories)
        raise DataError(f"{where}: class {name!r} is not in the label map ({known})")
    return category.label


def labels_of(names: Iterable[str], categories: Categories, where: object) -> dict[str, int]:
    """Return the label of each class name that the categories have, by name or else display name.

    A name in another Unicode form than theirs is theirs too: macOS writes é as two characters.

    Raises:
        DataError: If there are names, and the categories have none of them.
    """
    wanted = sorted(set(names))
    same = {unicodedata.normalize("NFC", item.name): item for item in categories}
    matched = {name: categories.by_any_name(name) or same.get(unicodedata.normalize("NFC", name)) for name in wanted}
    labels = {name: item.label for name, item in matched.items() if item is not None}
    if wanted and not labels:
        known = _first_names([item.name for item in categories])
        raise DataError(
            f"{where}: none of the classes in the data ({_first_names(wanted)}) is in the label map ({known})"
        )
    return labels


def _first_names(names: Sequence[str], most: int = 10) -> str:
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown(name, _MOST_SHOWN) for name in names[:most]) + more


def inside(folder: Path, name: str, where: str, *, allow_outside: bool) -> Path:
    """Return the path of a file that an annotation names, below its folder.

    Symbolic links inside the folder are followed, wherever they point: they belong to the folder's owner.

    Args:
        allow_outside: Whether absolute names, and `..` beyond the folder, are accepted.

    Raises:
        DataError: For a name that points outside the folder, or is not a valid file name.
    """
    if "\0" in name:
        raise DataError(f"{where}: {shown(name)!r} is not a file name: it has a null byte")
    path = folder / name
    if not allow_outside:
        # Compared as paths: as text, /data-old would begin like /data.
        beyond = os.path.relpath(os.path.abspath(path), os.path.abspath(folder)).split(os.sep)[0] == os.pardir
        if beyond:
            raise DataError(
                f"{where}: {shown(name)!r} lies outside {folder}; if that is intended, set "
                "allow_paths_outside in the reader, or pass it when opening the data"
            )
    return path
