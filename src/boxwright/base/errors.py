"""All errors that Boxwright raises.

    BoxwrightError
    ├── ConfigError          a configuration that cannot be read or asks for something unsupported
    ├── DataError            a label map, record, annotation or image that cannot be used
    ├── CheckpointError      a checkpoint that is damaged, missing or belongs to another model
    ├── ExportError          a detector that a format cannot represent, or an export that differs from its detector
    ├── OutputError          a file that cannot be written (a full disk, a read-only folder)
    └── TrainingError        a run that cannot continue (a loss that is not finite, a dead worker)

A message says what was expected, what was received, where, and what to do about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from boxwright.base.text import visible_line, without_secrets

_LONGEST, _LONGEST_LINE = 4000, 500


def shortened(text: str, most: int) -> str:
    """Return a text, cut in the middle if it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2) :]}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, shortened; the error's type if it has no text."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return shortened(lines[0], _LONGEST_LINE)


# What libraries say in place of a MemoryError: libjpeg-turbo, Pillow, the system, zlib, and PyTorch of a GPU and a CPU.
_SHORTAGES = (
    *("insufficient memory", "out of memory", "cannot allocate memory", "error -4 while"),
    *("can't allocate memory", "not enough memory: you tried to allocate", "std::bad_alloc"),
)


def is_shortage(error: BaseException) -> bool:
    """Return whether an error says that memory was short, which is no fault of the data that were being read."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _SHORTAGES)


def describe_shortage(error: BaseException) -> str:
    """Return what an error says of a lack of memory, without the library's own words."""
    asked = re.search(r"allocate ([\d.]+ \w+)", str(error))
    return f"not enough memory{f' ({asked[1]} at once)' if asked else ''}"


def pass_shortage(error: BaseException, where: str) -> None:
    """Raise a MemoryError in place of an error that says that memory was short, so that it counts as no damage."""
    if is_shortage(error):
        raise MemoryError(f"{where}: {describe_shortage(error)}") from error


class BoxwrightError(Exception):
    """The base of all errors that Boxwright raises on purpose. The text is bounded, and has no password or token."""

    def __str__(self) -> str:
        return shortened(without_secrets(super().__str__()), _LONGEST)


class ConfigError(BoxwrightError):
    """A configuration is malformed, contradicts itself, or asks for something unsupported."""


class DataError(BoxwrightError):
    """A data file is missing, damaged, or contradicts itself. The text is one line, whatever names in the file are."""

    def __str__(self) -> str:
        return visible_line(super().__str__())


class CheckpointError(BoxwrightError):
    """A checkpoint is missing, damaged, or belongs to another model."""


class ExportError(BoxwrightError):
    """A detector cannot be exported, or its export behaves differently."""


class OutputError(BoxwrightError):
    """A file cannot be written; the previous file is unchanged."""


class TrainingError(BoxwrightError):
    """A training run cannot continue."""


@contextmanager
def translated(kind: type[BoxwrightError], what: str) -> Iterator[None]:
    """Raise an error of ours in place of any but a lack of memory, for libraries whose errors have no common base.

    Args:
        what: What failed, to which the first line of the library's error is added.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        pass_shortage(error, what)
        raise kind(f"{what}: {first_line(error)}") from error
