"""Archives of the model zoo (`NAME.tar.gz`), unpacked temporarily."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from boxwright.base.errors import CheckpointError
from boxwright.base.files import BoundedFile, diagnose_wrong_file, is_file, open_regular, shown
from boxwright.base.limits import ARCHIVE_FILES, CHECKPOINT_BYTES

_ENDINGS = (".tar.gz", ".tgz", ".tar")
# Files to extract from an archive.
_WANTED = (
    "*.config",
    "*.index",
    "*.data-*",
    "*.meta",
    "checkpoint",
    "*.pb",
    "*.ckpt",
    "*.pbtxt",
    "*.safetensors",
    "ckpt-*.pt",
)


def is_archive(source: str | Path) -> bool:
    """Return whether a path is an archive, by its name."""
    return str(source).lower().endswith(_ENDINGS) and is_file(source)


def _check_size(end: int) -> None:
    if problem := CHECKPOINT_BYTES.exceeded(end):
        raise CheckpointError(problem)


@contextmanager
def unpacked(source: str | Path) -> Iterator[Path]:
    """Unpack an archive into a temporary folder.

    Args:
        source: Where weights are; anything but an archive is yielded unchanged.

    Yields:
        The archive's folder, or the source.

    Raises:
        CheckpointError: If the archive is damaged, names a path outside itself, or exceeds a limit.
    """
    path = Path(source)
    if not is_archive(path):
        yield path
        return
    if instead := diagnose_wrong_file(path):
        raise CheckpointError(f"{shown(path)}: {instead}")
    with tempfile.TemporaryDirectory(prefix="boxwright-") as folder:
        try:
            _unpack(path, Path(folder))
        except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, OverflowError) as error:
            raise CheckpointError(f"{shown(path)}: not an archive that can be unpacked, or cut off: {error}") from None
        inside = list(Path(folder).iterdir())
        yield inside[0] if len(inside) == 1 and inside[0].is_dir() else Path(folder)


@contextmanager
def _decompressed(path: Path) -> Iterator[IO[bytes]]:
    with open_regular(path) as file:
        compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not compressed:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unzipped:
            yield unzipped  # type: ignore[misc]


def _unpack(path: Path, folder: Path) -> None:
    size = 0
    with _decompressed(path) as file, tarfile.open(fileobj=BoundedFile(file, _check_size), mode="r:") as archive:  # type: ignore[call-overload]
        for count, member in enumerate(archive, start=1):
            if problem := ARCHIVE_FILES.exceeded(count):
                raise CheckpointError(f"{shown(path)}: {problem}")
            name = PurePosixPath(member.name)
            windows = PureWindowsPath(member.name)
            # By both systems' rules: a drive or a backslash is part of a plain name to PurePosixPath.
            if name.is_absolute() or windows.drive or windows.root or ".." in windows.parts:
                raise CheckpointError(f"{shown(path)}: names a path outside itself: {shown(member.name)}")
            size += member.size
            if problem := CHECKPOINT_BYTES.exceeded(size):
                raise CheckpointError(f"{shown(path)}: {problem}")
            # No links or devices: a link could lead later members out of the folder.
            content = archive.extractfile(member) if member.isreg() else None
            if content is None or not any(name.match(pattern) for pattern in _WANTED):
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as written:
                shutil.copyfileobj(content, written)
