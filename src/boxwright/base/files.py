"""Reading and writing files: whole or not at all, and with errors that name the file."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from boxwright.base.errors import BoxwrightError, DataError, OutputError, shortened
from boxwright.base.locks import closed_in_children, lock

# Lies in a folder while its files are being written one by one.
MARKER = "UNFINISHED"
_UNTIL = "Removed when all is written."
# What a name may be at most on common file systems is 255 bytes; the rest is for endings and temporaries.
_LONGEST_STEM = 120


def is_file(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is a file; False, not an error, for names that no file can have."""
    return os.path.isfile(path)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is a folder; False, not an error, for names that no folder can have."""
    return os.path.isdir(path)


def as_here(named: str) -> str:
    """Return a path that a configuration names as this system writes it: backslashes of Windows become slashes."""
    return named if "\\" not in named or os.path.exists(named) else named.replace("\\", "/")


def read_file(path: str | Path, error: type[BoxwrightError] = DataError) -> bytes:
    """Return a file's bytes.

    Args:
        error: What is raised where it cannot be read.

    Raises:
        BoxwrightError: Of the kind asked for, with the path and the system's reason.
    """
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as problem:  # ValueError: a name with a null byte
        raise error(f"{shown(path)}: {cause(problem)}") from None


def size_of(path: str | Path) -> int:
    """Return a file's bytes in number; 0 where it cannot be looked at, which reading it will tell."""
    try:
        return os.path.getsize(path)
    except (OSError, ValueError):
        return 0


def shown(path: str | os.PathLike[str], most: int = 400) -> str:
    """Return a path as messages show it: cut in the middle where it is overlong, null bytes escaped."""
    return shortened(os.fspath(path).replace("\0", "\\0"), most)


def cause(error: Exception) -> str:
    """Return why a file could not be read or written, in words; without its name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


@contextmanager
def open_whole(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only when all of it is on the disk.

    Until then its bytes are in a hidden file beside it, of a name that no other writer has. Whatever
    ends the writing early, what was at the path before stays, and the hidden file goes; only a kill
    that no program can answer leaves it.

    Args:
        path: The file; its folder must exist.

    Raises:
        OutputError: Where it cannot be written: a full disk, a folder that is gone or read-only.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name[:_LONGEST_STEM]}.{os.getpid()}-{uuid4().hex[:12]}.partial")
    try:
        try:
            with partial.open("x+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            _settle(path.parent)
        finally:
            with suppress(OSError, ValueError):
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"{shown(path)}: could not be written: {cause(error)}") from None
    except ValueError as error:
        if "null byte" not in str(error):
            raise
        raise OutputError(f"{shown(path)}: could not be written: {error}") from None


def _settle(folder: Path) -> None:
    """Bring a renaming to the disk, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_whole(path: str | Path, content: bytes | str) -> Path:
    """Write a file so that it is there whole or not at all; text as UTF-8.

    Args:
        path: The file; its folder must exist.

    Raises:
        OutputError: As `open_whole`; also for text that no file can hold (half of a surrogate pair).
    """
    try:
        data = content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as error:
        raise OutputError(f"{shown(path)}: could not be written: {error}") from None
    with open_whole(path) as file:
        file.write(data)
    return Path(path)


def make_folder(path: str | Path) -> Path:
    """Make a folder, and those above it, where they are not there.

    Raises:
        OutputError: Where it cannot be made.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise OutputError(f"{shown(path)}: this folder cannot be made: {cause(error)}") from None
    return Path(path)


@contextmanager
def unfinished(folder: str | Path, what: str) -> Iterator[Path]:
    """Mark a folder while its files are written; the mark stays where anything prevents the last of them.

    The mark is held as a lock, so that there is one writer a folder; one that was killed holds nothing.

    Args:
        what: Who writes what, for the mark's text and for who meets it later.

    Raises:
        OutputError: Where another writes to the folder, or the folder or the mark cannot be written.
    """
    marker = make_folder(folder) / MARKER
    try:
        descriptor = _locked(marker)
        with closed_in_children(descriptor):
            _write_holder(marker, descriptor, f"{what}; host {socket.gethostname()}, process {os.getpid()}")
            yield Path(folder)
            if os.name == "posix":  # in the lock, as whoever comes next makes a mark of its own
                _remove(marker, descriptor)
        if os.name != "posix":  # where an open file cannot be removed
            marker.unlink(missing_ok=True)
    except _MarkError as problem:
        raise OutputError(f"{shown(marker)}: could not be written: {problem}") from None


class _MarkError(Exception):
    """Why a mark could not be written."""


def _locked(marker: Path) -> int:
    """Open a mark, new or left by one that was killed, and lock it; return its descriptor."""
    while True:
        try:
            descriptor = os.open(marker, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except (OSError, ValueError) as error:
            raise _MarkError(cause(error)) from None
        try:
            refused = lock(descriptor)
        except BlockingIOError:
            holder = os.read(descriptor, 1000).decode("utf-8", "replace").split(f". {_UNTIL}")[0]
            os.close(descriptor)
            raise OutputError(
                f"{shown(marker.parent)}: another run is writing to this folder: "
                f"{holder or 'one that has not given its name yet'}; write to another, or wait for its end"
            ) from None
        if refused:
            warnings.warn(
                f"{shown(marker.parent)}: this file system cannot lock files ({refused}): nothing keeps a second run "
                "out of the folder",
                stacklevel=4,
            )
        if os.name != "posix" or _is_still(marker, descriptor):
            return descriptor
        os.close(descriptor)  # its holder removed it between our two calls


def _write_holder(marker: Path, descriptor: int, holder: str) -> None:
    before = os.fstat(descriptor).st_size
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{holder}. {_UNTIL}\n".encode())
        os.fsync(descriptor)
    except OSError as error:
        if not before:  # nobody's: the folder is as it was
            _remove(marker, descriptor)
        raise _MarkError(cause(error)) from None


def _remove(marker: Path, descriptor: int) -> None:
    """Remove a mark, unless a user has done so and the one that is there now is another run's."""
    if _is_still(marker, descriptor):
        marker.unlink(missing_ok=True)


def _is_still(path: Path, descriptor: int) -> bool:
    """Tell whether an open file has its name yet: who held it before may have removed it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def refuse_unfinished(folder: str | Path) -> None:
    """Raise if a folder was left in the middle of being written.

    Raises:
        DataError: Where its mark is there.
    """
    if is_file(Path(folder) / MARKER):
        raise DataError(
            f"{shown(folder)}: this folder is not whole: what wrote it has not finished (it says so in {MARKER}); "
            f"write it again, or remove {MARKER} to use what there is"
        )


def partial_files(folder: Path) -> list[Path]:
    """List what writers that were killed have left in a folder, or living ones are writing."""
    return sorted(folder.glob(".*.partial"))


def unique_stem(name: str, taken: set[str]) -> str:
    """Make any text a file's name without its ending, other than those given out before.

    Args:
        name: Such as an image's id; may hold what no file's name can.
        taken: Names given out before, in lower case; the new one is added.

    Returns:
        Letters, digits, dashes, dots and underscores, at most 120 bytes; `-2`, `-3`… at the end where needed.
    """
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".") or "_"
    while len(plain.encode("utf-8", "replace")) > _LONGEST_STEM:
        plain = plain[: max(len(plain) * 3 // 4, 1)] if len(plain) > _LONGEST_STEM else plain[:-1]
    plain = plain.encode("utf-8", "replace").decode()
    number, stem = 1, plain
    while stem.lower() in taken:  # lower: some file systems do not tell a.png from A.png
        number += 1
        stem = f"{plain}-{number}"
    taken.add(stem.lower())
    return stem
