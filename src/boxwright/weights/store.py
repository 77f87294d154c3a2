"""A run's checkpoints on disk: `ckpt-<step>.pt` in the model folder, in the format of `torch.save`.

A file appears under its name only when complete, so a kill at any moment leaves the old checkpoints intact. A run
resumes from the newest intact one. torch ignores the checksums of these zip archives, and so accepts corrupt weights:
ours store the SHA-256 of the rest of the file in the archive's comment, which other readers ignore, and it is verified
before use.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import struct
import types
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from boxwright.base.errors import CheckpointError, DataError, OutputError, first_line, pass_shortage
from boxwright.base.files import is_folder, open_regular, open_whole, partial_files, reading_file, shown
from boxwright.config.load import parse_message
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import with_earlier_rule
from boxwright.pipeline.tensorflow_version import with_version
from boxwright.runtime.formats import CHECKPOINT_NAME
from boxwright.types import Categories

_SEAL = b"boxwright sha256 "
_SEAL_SIZE = len(_SEAL) + 64
_CHUNK = 1 << 20


def save_archive(content: dict[str, Any], file: BinaryIO) -> None:
    """Write content like `torch.save`, with its digest as the archive's comment.

    Args:
        file: Empty, open for reading and writing.
    """
    try:
        torch.save(content, file)
    except RuntimeError as error:
        # torch closes its archive nevertheless, and then says only that its position is wrong.
        raise _first_os_error(error) or error from None
    # An archive ends with its comment's length, for which torch writes 0.
    file.seek(-2, os.SEEK_END)
    file.write(struct.pack("<H", _SEAL_SIZE))
    size = file.tell()
    digest = _digest(file, size)
    file.seek(size)
    file.write(_SEAL + digest)


def _first_os_error(error: BaseException) -> OSError | None:
    """Return the system's error, such as that of a full disk, during whose handling another was raised."""
    while error.__context__ is not None and not isinstance(error, OSError):
        error = error.__context__
    return error if isinstance(error, OSError) else None


def _digest(file: BinaryIO, size: int) -> bytes:
    """Return the SHA-256 of a file's first bytes."""
    digest = hashlib.sha256()
    file.seek(0)
    for start in range(0, size, _CHUNK):
        digest.update(file.read(min(_CHUNK, size - start)))
    return digest.hexdigest().encode()


def load_archive(path: str | Path) -> Any:
    """Return the content of a file of tensors and plain data, without running code from it.

    The digest is verified, or the archive's own checksums if another program wrote it. (Files of torch before 1.6 have
    neither.)

    Raises:
        FileNotFoundError: If the file does not exist.
        CheckpointError: If it cannot be read, is damaged, or contains more than tensors and plain data.
    """
    return _load(path, _verify)


def load_sealed_archive(path: str | Path) -> Any:
    """Return the content of a file that `save_archive` wrote; one without a digest is damaged.

    The archive's own checksums would not notice tensors that were exchanged in its table.

    Raises:
        FileNotFoundError: If the file does not exist.
        CheckpointError: As for `load_archive`.
    """
    return _load(path, _verify_seal)


# Objects of attributes, as arguments of a training are stored; building them runs no code.
_PLAIN_OBJECTS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    argparse.Namespace,
    types.SimpleNamespace,
]


def _load(path: str | Path, verify: Callable[[BinaryIO], object]) -> Any:
    try:
        with open_regular(path) as file:
            verify(file)
            file.seek(0)
            # weights_only: the unpickler builds tensors and plain data, and imports nothing.
            with torch.serialization.safe_globals(_PLAIN_OBJECTS):
                return torch.load(file, map_location="cpu", weights_only=True)
    except (FileNotFoundError, MemoryError):
        raise
    except pickle.UnpicklingError:
        problem = "it holds more than tensors and plain data, which could run code, or is damaged"
    except Exception as error:  # noqa: BLE001  # torch.load raises a dozen kinds of exceptions for other files
        pass_shortage(error, shown(path))
        problem = first_line(error)
    raise CheckpointError(f"{shown(path)}: not a readable checkpoint: {problem}")


def is_sealed(path: Path) -> bool:
    """Return whether a file ends as those that `save_archive` writes; their digest is not checked."""
    with reading_file(path) as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _SEAL_SIZE, 0))
        return file.read(len(_SEAL)) == _SEAL


def _verify_seal(file: BinaryIO) -> None:
    """Check a file's digest; a ValueError if it has none."""
    if not _has_seal(file):
        raise ValueError("damaged, or written by another program: it has no digest")


def _has_seal(file: BinaryIO) -> bool:
    """Return whether a file has a digest, after checking it; a ValueError if it does not hold."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - _SEAL_SIZE, 0))
    seal = file.read()
    if not seal.startswith(_SEAL):
        return False
    if _digest(file, size - _SEAL_SIZE) != seal[len(_SEAL) :]:
        raise ValueError("damaged: its digest does not hold")
    return True


def _verify(file: BinaryIO) -> None:
    """Check a file's digest, or if it has none its archive's checksums.

    Raises:
        ValueError: If they do not match, or a member is compressed: torch compresses nothing, but a zip bomb is
            compressed.
    """
    if _has_seal(file):
        return
    file.seek(0)
    if file.read(4) == b"PK\x03\x04":
        with zipfile.ZipFile(file) as archive:
            packed = next((m.filename for m in archive.infolist() if m.compress_type != zipfile.ZIP_STORED), "")
            if packed:
                raise ValueError(f"{packed[:60]!r} in it is compressed, which torch never does")
            if damaged := archive.testzip():
                raise ValueError(f"damaged: the checksum of {damaged[:60]!r} in it does not hold")


# Since format 2, TF1's names of extractors have TF1's meaning; in format 1 they have TF2's.
FORMAT = 2
_MOST = 1 << 63  # of what is counted, and of seeds

# Fields of a run's checkpoint: name → type, and type of a dictionary's or list's values.
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
    """Write a checkpoint atomically.

    Raises:
        CheckpointError: If the disk is full or the folder is gone; existing files stay.
    """
    try:
        with open_whole(path) as file:
            save_archive({"format": FORMAT, **content}, file)
    except OutputError as error:
        raise CheckpointError(f"{error}; earlier ones are intact") from None
    except RuntimeError as error:  # torch's error for a full disk
        if "DataLoader worker" in str(error):  # its SIGCHLD handler can raise anywhere
            raise
        raise CheckpointError(f"{shown(path)}: could not be written: {error}; earlier ones are intact") from None


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return the content of one of our checkpoints with validated types, without running code from it.

    Raises:
        CheckpointError: If it is missing, damaged, or not ours.
    """
    try:
        content = load_sealed_archive(path)
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
    """Raise a `CheckpointError` for the first missing field, or field of a wrong type."""
    for name, (kind, inner) in _FIELDS.items():
        if name not in content:
            raise CheckpointError(f"{shown(path)}: not a whole checkpoint: it has no {name!r}")
        value = content[name]
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if not isinstance(value, kind) or (inner and not all(isinstance(item, inner) for item in values)):
            raise CheckpointError(
                f"{shown(path)}: not a whole checkpoint: its {name!r} is of another kind ({type(value).__name__})"
            )
    for name in ("step", "seed", "samples", "parts"):
        if not 0 <= content[name] < _MOST:
            raise CheckpointError(f"{shown(path)}: not a whole checkpoint: its {name!r} is {content[name]}")
    for part in ("initial_shares", "average_initial_shares"):
        shares = content.get(part, {})
        numbers = list(shares.values()) if isinstance(shares, dict) else [None]
        if not all(isinstance(share, float) and 0 <= share <= 1 for share in numbers):
            raise CheckpointError(f"{shown(path)}: not a whole checkpoint: its {part!r} are not numbers from 0 to 1")
    if any(not isinstance(name, str) for part in ("network", "average") for name in content[part]):
        raise CheckpointError(f"{shown(path)}: not a whole checkpoint: a tensor's name is not text")
    try:
        # An empty list is of a detector without named classes, which `from_list` refuses.
        Categories.from_list(content["categories"] or [{"label": 0, "id": 1, "name": "any"}])
    except (DataError, TypeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{shown(path)}: not a whole checkpoint: its classes: {error}") from None


class CheckpointStore:
    """The checkpoints in one model folder."""

    def __init__(self, model_dir: str | Path, keep: int = 5, keep_every_n_hours: float = 10000.0) -> None:
        """Store the settings.

        Args:
            keep: How many of the newest checkpoints to keep.
            keep_every_n_hours: The minimum interval between checkpoints that are kept permanently.
        """
        self.folder, self.keep, self.keep_every_n_hours = Path(model_dir), keep, keep_every_n_hours

    def paths(self) -> list[Path]:
        """Return the checkpoints by step."""
        numbered = [
            (int(match[1]), path)
            for path in self.folder.glob("ckpt-*.pt")
            if (match := CHECKPOINT_NAME.fullmatch(path.name))
        ]
        return [path for _, path in sorted(numbered)]

    def save(self, step: int, content: dict[str, Any], began: float = 0.0) -> Path:
        """Write a checkpoint, then remove the oldest beyond `keep`.

        Args:
            began: When the run began, in seconds since 1970; `keep_every_n_hours` counts from there.
        """
        path = self.folder / f"ckpt-{step}.pt"
        write_checkpoint({"step": step, **content}, path)
        for old in self._superfluous(began):
            old.unlink(missing_ok=True)
        return path

    @property
    def best(self) -> Path:
        """The path of the best checkpoint, which may not exist yet."""
        return self.folder / "best.pt"

    def save_best(self, step: int, content: dict[str, Any]) -> Path:
        """Write the best checkpoint, replacing the previous one."""
        write_checkpoint({"step": step, **content}, self.best)
        return self.best

    def tidy(self) -> None:
        """Remove partial files of killed writers; the folder must belong to this process alone."""
        for left in partial_files(self.folder):
            left.unlink(missing_ok=True)

    def _superfluous(self, began: float) -> Iterator[Path]:
        """Yield checkpoints to remove: those beyond the newest, except one every so many hours."""
        kept = began
        # By the files' times, which need no index of their own and outlive restarts.
        for path in self.paths()[: -self.keep]:
            written = path.stat().st_mtime
            if began and written - kept >= self.keep_every_n_hours * 3600:
                kept = written
            else:
                yield path

    def latest(self) -> tuple[Path, dict[str, Any]] | None:
        """Return the newest readable checkpoint and its content; None if there is no checkpoint at all.

        Raises:
            CheckpointError: If there are checkpoints, but none can be read.
        """
        errors = []
        for path in reversed(self.paths()):
            try:
                return path, read_checkpoint(path)
            except CheckpointError as error:
                errors.append(str(error))
                warnings.warn(f"{error}; using the previous one", stacklevel=2)
        if errors:
            raise CheckpointError("no checkpoint is readable:\n" + "\n".join(errors))
        return None


def find_checkpoint(path: str | Path) -> tuple[Path, dict[str, Any]]:
    """Return the file and content of a checkpoint of ours.

    Args:
        path: A checkpoint, or a run's folder, of which the newest is used.

    Raises:
        CheckpointError: If there is none, or it cannot be read.
    """
    path = Path(path)
    if is_folder(path):
        latest = CheckpointStore(path).latest()
        if latest is None:
            raise CheckpointError(f"{path}: no checkpoint in this folder, neither ckpt-*.pt nor *.index of TensorFlow")
        return latest
    return path, read_checkpoint(path)


def nearby(path: str | Path) -> str:
    """Return the end of an error message that lists the checkpoints near a missing path; empty if there are none."""
    near = sorted(other.name for other in Path(path).parent.glob("ckpt-*.*"))[:3]
    return f"; there is {', '.join(near)}" if near else ""


def read_config(content: dict[str, Any], path: str | Path) -> m.TrainEvalPipelineConfig:
    """Return the configuration in one of our checkpoints.

    Args:
        content: Of the checkpoint.
        path: The file, for errors.

    Returns:
        The configuration; with TF2's meaning of names if the checkpoint predates TF1's, and without EXIF orientations
        if it predates them.

    Raises:
        ConfigError: If it cannot be read.
    """
    config = with_earlier_rule(parse_message(content["config"], m.TrainEvalPipelineConfig, file=str(path)))
    return with_version(config, 2) if content["format"] == 1 else config
