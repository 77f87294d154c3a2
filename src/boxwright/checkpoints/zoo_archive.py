"""Archives as the model zoo has them (`NAME.tar.gz`): unpacked for as long as they are read."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from boxwright.errors import CheckpointError
from boxwright.files import is_file, shown
from boxwright.limits import ARCHIVE_FILES, CHECKPOINT_BYTES
from boxwright.wrong_file import what_it_is_instead

__all__ = ["unpacked"]

_ENDINGS = (".tar.gz", ".tgz", ".tar")
# What of an archive is of use.
_WANTED = ("*.config", "*.index", "*.data-*", "checkpoint", "*.pb", "*.ckpt", "*.pbtxt", "*.safetensors", "ckpt-*.pt")


@contextmanager
def unpacked(source: str | Path) -> Iterator[Path]:
    """Unpack an archive into a folder that is gone afterwards.

    Args:
        source: Where weights are; what is no archive is left as it is.

    Yields:
        The archive's folder, or the source.

    Raises:
        CheckpointError: Where the archive is damaged, names a path outside itself, or exceeds a limit.
    """
    path = Path(source)
    if not str(source).endswith(_ENDINGS) or not is_file(path):
        yield path
        return
    if instead := what_it_is_instead(path):
        raise CheckpointError(f"{shown(path)}: {instead}")
    with tempfile.TemporaryDirectory(prefix="boxwright-") as folder:
        try:
            _unpack(path, Path(folder))
        except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, OverflowError) as error:
            raise CheckpointError(f"{shown(path)}: not an archive that can be unpacked, or cut off: {error}") from None
        yield _inner(Path(folder))


def _unpack(path: Path, folder: Path) -> None:
    size = 0
    with tarfile.open(path) as archive:
        for count, member in enumerate(archive, start=1):
            if problem := ARCHIVE_FILES.exceeded(count):
                raise CheckpointError(f"{shown(path)}: {problem}")
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts:
                raise CheckpointError(f"{shown(path)}: names a path outside itself: {shown(member.name)}")
            size += member.size
            if problem := CHECKPOINT_BYTES.exceeded(size):
                raise CheckpointError(f"{shown(path)}: {problem}")
            content = archive.extractfile(member) if member.isreg() else None
            if content is None or not any(name.match(pattern) for pattern in _WANTED):
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(content, file)


def _inner(folder: Path) -> Path:
    """Return the one folder that all lies in, where there is one."""
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder
