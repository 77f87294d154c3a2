"""Checks that a command's input exists, made before anything heavy is imported."""

from __future__ import annotations

import glob
from pathlib import Path

from boxwright.base.errors import CheckpointError, DataError
from boxwright.base.files import is_file, is_folder


def require_checkpoint(path: Path) -> None:
    """Raise a CheckpointError if no file, folder or checkpoint prefix of that name exists.

    If the folder has other checkpoints, the reader lists them later.
    """
    exists = is_file(f"{path}.index") or is_file(path) or is_folder(path)
    if not exists and not (is_folder(path.parent) and any(path.parent.glob("*ckpt-*"))):
        raise CheckpointError(f"{path}: no such folder or checkpoint")


def require_data(source: str) -> None:
    """Raise a DataError if nothing matches a path or glob; `name@10` is left to the reader."""
    if "@" not in source and not is_file(source) and not is_folder(source) and not glob.glob(source):
        raise DataError(f"no file matches {source!r}")
