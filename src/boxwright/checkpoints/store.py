"""A run's checkpoints on disk: `ckpt-<step>.pt` in the model folder.

A file appears under its name only when all of it is on the disk, so a kill at any moment leaves
either the old checkpoints or the old ones and a new one. Each carries a digest, which is checked
before anything of it is used. A run resumes from the newest one that is whole.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from boxwright.base.errors import CheckpointError, DataError, OutputError
from boxwright.base.files import is_folder, open_whole, partial_files, shown
from boxwright.checkpoints.archive import load_archive, save_archive
from boxwright.types import Categories

_NAME = re.compile(r"ckpt-([0-9]{1,18})\.pt")
# 2: a TF1 name of an extractor has TF1's meaning; in files of format 1 it has TF2's.
FORMAT = 2

# What a run's checkpoint holds: field → its type, and that of a dictionary's or list's values.
_FIELDS: dict[str, tuple[type | tuple[type, ...], type | None]] = {
    "step": (int, None),
    "network": (dict, Tensor),
    "optimizer": (dict, None),
    "optimizer_kind": (str, None),
    "average": (dict, Tensor),
    "scaler": (dict, None),
    "categories": (list, dict),
    "config": (str, None),
    "seed": (int, None),
    "samples": (int, None),
    "parts": (int, None),
    "selection": (dict, None),
    "began": ((float, int), None),
}


def write_checkpoint(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint so that it is there whole or not at all.

    Raises:
        CheckpointError: Where the disk is full or the folder is gone; what was there stays.
    """
    try:
        with open_whole(path) as file:
            save_archive({"format": FORMAT, **content}, file)
    except OutputError as error:
        raise CheckpointError(f"{error}; earlier ones are intact") from None
    except RuntimeError as error:  # torch's word for a disk that is full
        if "DataLoader worker" in str(error):  # whose death can be told at any moment
            raise
        raise CheckpointError(f"{shown(path)}: could not be written: {error}; earlier ones are intact") from None


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint of ours; no code in it is run.

    Returns:
        Its content, each field of its type.

    Raises:
        CheckpointError: Where it is missing, damaged, or not ours.
    """
    try:
        content = load_archive(path)
    except FileNotFoundError:
        raise CheckpointError(f"{shown(path)}: no such checkpoint{nearby(path)}") from None
    version = content.get("format") if isinstance(content, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise CheckpointError(f"{shown(path)}: written by a later version of Boxwright (format {version})")
    if not isinstance(version, int) or version < 1:
        raise CheckpointError(f"{shown(path)}: not a checkpoint of Boxwright")
    check_content(content, path)
    return dict(content)


def check_content(content: dict[str, Any], path: str | Path) -> None:
    """Raise where a checkpoint lacks a field, or has one of another type.

    Raises:
        CheckpointError: With the first such field.
    """
    for name, (kind, inner) in _FIELDS.items():
        if name not in content:
            raise CheckpointError(f"{shown(path)}: not a whole checkpoint: it has no {name!r}")
        value = content[name]
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if not isinstance(value, kind) or (inner and not all(isinstance(one, inner) for one in values)):
            raise CheckpointError(
                f"{shown(path)}: not a whole checkpoint: its {name!r} is of another kind ({type(value).__name__})"
            )
    if any(not isinstance(name, str) for part in ("network", "average") for name in content[part]):
        raise CheckpointError(f"{shown(path)}: not a whole checkpoint: a tensor's name is not text")
    try:
        Categories.from_list(content["categories"] or [{"label": 0, "id": 1, "name": "any"}])
    except (DataError, TypeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{shown(path)}: not a whole checkpoint: its classes: {error}") from None


class CheckpointStore:
    """The checkpoints of one model folder."""

    def __init__(self, model_dir: str | Path, keep: int = 5, keep_every_n_hours: float = 10000.0) -> None:
        """Remember the folder.

        Args:
            model_dir: The folder; it need not exist.
            keep: How many of the newest checkpoints stay.
            keep_every_n_hours: How much later than the last that stays for good another stays for good.
        """
        self.folder, self.keep, self.keep_every_n_hours = Path(model_dir), keep, keep_every_n_hours

    def paths(self) -> list[Path]:
        """List the checkpoints."""
        found = [
            (int(match[1]), path) for path in self.folder.glob("ckpt-*.pt") if (match := _NAME.fullmatch(path.name))
        ]
        return [path for _, path in sorted(found)]

    def save(self, step: int, content: dict[str, Any], began: float = 0.0) -> Path:
        """Write a checkpoint, then drop the oldest beyond `keep`.

        Args:
            began: When the run began, in seconds since 1970; hours are counted from there.
        """
        path = self.folder / f"ckpt-{step}.pt"
        write_checkpoint({"step": step, **content}, path)
        for old in self._superfluous(began):
            old.unlink(missing_ok=True)
        return path

    def save_best(self, step: int, content: dict[str, Any]) -> Path:
        """Write the best checkpoint, in place of the one before."""
        path = self.folder / "best.pt"
        write_checkpoint({"step": step, **content}, path)
        return path

    def tidy(self) -> None:
        """Remove what writers that were killed have left; the folder must be this process's alone."""
        for left in partial_files(self.folder):
            left.unlink(missing_ok=True)

    def _superfluous(self, began: float) -> Iterator[Path]:
        """List what no longer stays: of those that are not among the newest, all but one every so many hours."""
        kept = began
        for path in self.paths()[: -self.keep]:
            written = path.stat().st_mtime
            if began and written - kept >= self.keep_every_n_hours * 3600:
                kept = written
            else:
                yield path

    def latest(self) -> tuple[Path, dict[str, Any]] | None:
        """Read the newest checkpoint that can be read.

        Returns:
            The file and its content; None where there is no checkpoint at all.

        Raises:
            CheckpointError: Where there are checkpoints, and none can be read.
        """
        errors = []
        for path in reversed(self.paths()):
            try:
                return path, read_checkpoint(path)
            except CheckpointError as error:
                errors.append(str(error))
                warnings.warn(f"{error}; taking the one before", stacklevel=2)
        if errors:
            raise CheckpointError("no checkpoint is readable:\n" + "\n".join(errors))
        return None


def find_checkpoint(path: str | Path) -> tuple[Path, dict[str, Any]]:
    """Read the checkpoint of ours that a path means.

    Args:
        path: A checkpoint, or a run's folder, whose newest is taken.

    Raises:
        CheckpointError: Where there is none, or it cannot be read.
    """
    path = Path(path)
    if is_folder(path):
        found = CheckpointStore(path).latest()
        if found is None:
            raise CheckpointError(f"{path}: no checkpoint in this folder, neither ckpt-*.pt nor *.index of TensorFlow")
        return found
    return path, read_checkpoint(path)


def nearby(path: str | Path) -> str:
    """Say what checkpoints lie where one was looked for.

    Args:
        path: A path at which there is none.

    Returns:
        The end of an error's sentence; empty where there are none.
    """
    near = sorted(other.name for other in Path(path).parent.glob("ckpt-*.*"))[:3]
    return f"; there is {', '.join(near)}" if near else ""
