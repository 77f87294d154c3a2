"""Reading a sample: whatever goes wrong is a DataError that names the place and the cause.

Every data set reads its samples through here, so that leaving out bad ones works for all of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.base.errors import BoxwrightError, DataError
from boxwright.base.files import cause, shown
from boxwright.base.limits import COORDINATE
from boxwright.types import Sample

_MOST_SHOWN = 60


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn what goes wrong inside into a DataError; those of Boxwright pass as they are.

    Args:
        where: File and record, for the message.

    Raises:
        DataError: With the place and the cause.
    """
    try:
        yield
    except BoxwrightError:
        raise
    except MemoryError as error:
        raise DataError(f"{where}: not enough memory") from error
    except OSError as error:
        raise DataError(f"{where}: {cause(error)}") from error
    except Exception as error:  # a file can hold anything, and libraries raise whatever they meet in it
        raise DataError(f"{where}: {type(error).__name__}: {str(error)[:_MOST_SHOWN]}") from error


def checked_sample(sample: Sample, where: str) -> Sample:
    """Return a sample as it is, or raise where a number in it would spoil what follows.

    Args:
        where: File and record, for the message.

    Raises:
        DataError: For boxes, weights, areas or class scores that are not finite, and boxes far beyond any image.
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
    return sample


def finite_number(value: Any, where: str) -> float:
    """Return a number that a file states.

    Args:
        where: File, record and field, for the message.

    Raises:
        DataError: Where it is no number, or not a finite one.
    """
    if isinstance(value, bool | int | float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        raise DataError(f"{where}: expected a finite number, found {str(value)[:_MOST_SHOWN]}")
    raise DataError(f"{where}: expected a number, found {repr(value)[:_MOST_SHOWN]}")


def whole_number(value: Any, where: str) -> int:
    """Return a whole number that a file states; 3.0 is one.

    Args:
        where: File, record and field, for the message.

    Raises:
        DataError: Where it is no number, or has a fraction.
    """
    number = finite_number(value, where)
    if number != int(number):
        raise DataError(f"{where}: expected a whole number, found {value}")
    return int(value)


def inside(folder: Path, name: str, where: str, *, allow_outside: bool) -> Path:
    """Return the path of a file that an annotation names, below its folder.

    Links inside the folder are followed, wherever they lead: whoever made them has the folder.

    Args:
        folder: The folder that names are relative to.
        where: File and record, for the message.
        allow_outside: Whether absolute names, and `..` beyond the folder, are meant so.

    Raises:
        DataError: For a name that leads out of the folder, or that no file can have.
    """
    if "\0" in name:
        raise DataError(f"{where}: {shown(name)!r} is no file's name: it has a null byte")
    path = folder / name
    if not allow_outside:
        beyond = os.path.relpath(os.path.abspath(path), os.path.abspath(folder)).split(os.sep)[0] == os.pardir
        if beyond:
            raise DataError(
                f"{where}: {shown(name)!r} lies outside {folder}; where that is meant, set allow_paths_outside "
                "in the reader, or allow_paths_outside when it is opened"
            )
    return path
