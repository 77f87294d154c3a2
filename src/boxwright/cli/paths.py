"""Whether what a command is to read is there at all: told before anything heavy is imported."""

from __future__ import annotations

import glob
from pathlib import Path

from boxwright.base.errors import CheckpointError, DataError
from boxwright.base.files import is_file, is_folder


def require_checkpoint(path: Path) -> None:
    """Raise a CheckpointError where there is neither a file or folder nor a checkpoint of that prefix.

    Where the folder has other checkpoints, the reader says which.
    """
    there = is_file(f"{path}.index") or is_file(path) or is_folder(path)
    if not there and not (is_folder(path.parent) and any(path.parent.glob("*ckpt-*"))):
        raise CheckpointError(f"{path}: no such folder or checkpoint")


def require_data(source: str) -> None:
    """Raise a DataError where nothing matches a path or glob; `name@10` is left to the reader."""
    if "@" not in source and not is_file(source) and not is_folder(source) and not glob.glob(source):
        raise DataError(f"no file matches {source!r}")
