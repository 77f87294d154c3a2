"""A run's checkpoints on disk: `ckpt-<step>.pt` in the model folder.

A file appears under its name only when all of it is on the disk, so a kill at any moment leaves
either the old checkpoints or the old ones and a new one. The newest readable one is gone on from.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from boxwright.errors import CheckpointError

__all__ = ["FORMAT", "CheckpointStore", "find_checkpoint", "nearby", "read_checkpoint", "write_atomically"]

_NAME = re.compile(r"ckpt-(\d+)\.pt")
FORMAT = 1


def write_atomically(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint so that it is there whole or not at all.

    Args:
        content: Tensors and plain data.
        path: The file.

    Raises:
        CheckpointError: Where the disk is full or the folder is gone; what was there stays.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _settle(path.parent)
    except (OSError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        raise CheckpointError(
            f"{path}: the checkpoint could not be written: {error}; earlier ones are intact"
        ) from None


def _settle(folder: Path) -> None:
    """Bring a renaming to the disk, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint of ours; no code in it is run.

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        CheckpointError: Where it is missing, damaged, or not ours.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such checkpoint{nearby(path)}") from None
    except Exception as error:  # noqa: BLE001  # torch.load raises a dozen kinds for damaged files
        raise CheckpointError(f"{path}: not a readable checkpoint: {type(error).__name__}: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a checkpoint of Boxwright")
    return content


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
        """List the checkpoints.

        Returns:
            The files, oldest first.
        """
        found = [
            (int(match[1]), path) for path in self.folder.glob("ckpt-*.pt") if (match := _NAME.fullmatch(path.name))
        ]
        return [path for _, path in sorted(found)]

    def save(self, step: int, content: dict[str, Any], began: float = 0.0) -> Path:
        """Write a checkpoint, then drop the oldest beyond `keep`.

        Args:
            step: Steps done.
            content: Tensors and plain data.
            began: When the run began, in seconds since 1970; hours are counted from there.

        Returns:
            The file.
        """
        path = self.folder / f"ckpt-{step}.pt"
        write_atomically({"format": FORMAT, "step": step, **content}, path)
        for old in [*self._superfluous(began), *self.folder.glob(".*.pt.partial")]:
            old.unlink(missing_ok=True)
        return path

    def save_best(self, step: int, content: dict[str, Any]) -> Path:
        """Write the best checkpoint, in place of the one before.

        Args:
            step: Steps done.
            content: Tensors and plain data.

        Returns:
            The file, `best.pt`.
        """
        path = self.folder / "best.pt"
        write_atomically({"format": FORMAT, "step": step, **content}, path)
        return path

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

    Returns:
        The file and its content.

    Raises:
        CheckpointError: Where there is none, or it cannot be read.
    """
    path = Path(path)
    if path.is_dir():
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
