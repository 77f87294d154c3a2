"""Digests of published weights, recorded in the cache when their files are first used.

By its record a file that changed is noticed, and one that did not is not read through at each start. Files in the cache
are recorded by their names alone, so that a cache can be copied together with its records.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from boxwright.base.errors import CheckpointError
from boxwright.base.files import cause, file_sha256, read_bytes, shown, waiting_lock, write_whole

_FILE = "digests.json"


@dataclass(frozen=True)
class DigestRecord:
    """What was recorded of the file of published weights.

    Attributes:
        path: Of the file: its name if it is in the cache's folder, else the whole path without links.
        sha256: Its digest.
        size: In bytes, when the digest was computed.
        mtime_ns: When it had last been modified then, in nanoseconds.
    """

    path: str
    sha256: str
    size: int
    mtime_ns: int

    def is_current(self, folder: Path, path: Path) -> bool:
        """Return whether a file is the one recorded in a cache's folder, of the same size and time."""
        state = path.stat()
        known = (self.path, self.size, self.mtime_ns)
        return known == (_recorded_path(folder, path), state.st_size, state.st_mtime_ns)


def compute_record(folder: Path, path: Path) -> DigestRecord:
    """Return the record of a file as it is now, which is read through.

    Args:
        folder: The cache's.
        path: The file, wherever it is.

    Raises:
        CheckpointError: If it cannot be read.
    """
    try:
        # Before the content: a change while it is read then differs from the record.
        state = path.stat()
        digest = file_sha256(path)
    except OSError as error:
        raise CheckpointError(f"{shown(path)}: {cause(error)}") from None
    return DigestRecord(_recorded_path(folder, path), digest, state.st_size, state.st_mtime_ns)


def read_records(folder: Path) -> dict[str, DigestRecord]:
    """Return what is recorded in a cache's folder, by the names of published weights; empty if nothing is.

    Raises:
        CheckpointError: If the records cannot be read.
    """
    path = folder / _FILE
    try:
        rows = json.loads(read_bytes(path))
        return {name: _parse(row) for name, row in rows.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError(f"{shown(path)}: {cause(error)}") from None
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(
            f"{shown(path)}: damaged; remove it, and the digests of files in this folder are recorded anew"
        ) from None


def write_record(folder: Path, name: str, record: DigestRecord) -> None:
    """Replace what is recorded of published weights in a cache's folder.

    Raises:
        CheckpointError: If the records cannot be read.
        OutputError: If they cannot be written.
    """
    with waiting_lock(folder / f".{_FILE}.lock"):
        records = {**read_records(folder), name: record}
        rows = {key: asdict(records[key]) for key in sorted(records)}
        write_whole(folder / _FILE, json.dumps(rows, indent=1) + "\n")


def _recorded_path(folder: Path, path: Path) -> str:
    return path.name if path.parent.resolve() == folder.resolve() else str(path.resolve())


def _parse(row: dict[str, Any]) -> DigestRecord:
    """Return a record from JSON; raise TypeError if it is none."""
    record = DigestRecord(**row)
    texts, numbers = (record.path, record.sha256), (record.size, record.mtime_ns)
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(number, int) for number in numbers):
        raise TypeError(row)
    return record
