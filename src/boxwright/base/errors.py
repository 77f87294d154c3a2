"""Every error a user of Boxwright can meet.

    BoxwrightError
    ├── ConfigError          a configuration that cannot be read, or asks for what is not there
    ├── DataError            a label map, record, annotation or image that cannot be used
    ├── CheckpointError      a checkpoint that is damaged, missing or of another model
    ├── ExportError          a detector that a format cannot hold, or an export that does not do what the detector does
    ├── OutputError          a file that cannot be written (a full disk, a read-only folder)
    └── TrainingError        a run that cannot continue (a loss that is not finite, a dead worker)

A message says what was expected, what came, where, and what to do about it.
"""

from __future__ import annotations

_LONGEST, _LONGEST_LINE = 4000, 500


def shortened(text: str, most: int) -> str:
    """Return a text, or its two ends where it has more characters than allowed."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2) :]}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, shortened; the kind of an error that says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return shortened(lines[0], _LONGEST_LINE)


class BoxwrightError(Exception):
    """The base of all errors that Boxwright raises on purpose. Its text is bounded, whatever a file has in it."""

    def __str__(self) -> str:
        return shortened(super().__str__(), _LONGEST)


class ConfigError(BoxwrightError):
    """A configuration is malformed, contradicts itself, or asks for something unsupported."""


class DataError(BoxwrightError):
    """A data file is missing, damaged, or says something that cannot be true."""


class CheckpointError(BoxwrightError):
    """A checkpoint is missing, damaged, or belongs to another model."""


class ExportError(BoxwrightError):
    """A detector cannot be written for another runtime, or what was written does not do what the detector does."""


class OutputError(BoxwrightError):
    """A file cannot be written; what was there before is as it was."""


class TrainingError(BoxwrightError):
    """A training run cannot continue."""
