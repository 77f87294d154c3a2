"""Reading files, and writing them atomically, with errors that name the file.

Locks on files are released by the system when the process that holds them ends for any reason. A file that is not what
its name says is diagnosed by the few ways in which downloads go wrong.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, BinaryIO
from uuid import uuid4

from boxwright.base.errors import BoxwrightError, DataError, OutputError, shortened
from boxwright.base.limits import FILE_BYTES
from boxwright.base.paths import require_path
from boxwright.base.text import visible

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

_HEAD = 512
# Reads of members' content are far smaller, as is any honest header.
_LONGEST_READ = 1 << 24
_MARKS: tuple[tuple[bytes | tuple[bytes, ...], str], ...] = (
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`",
    ),
    ((b"<!doctype html", b"<html"), "a web page, not the file that its name says; download it again"),
    (b"<?xml", "an XML text, such as a server's error, not the file that its name says; download it again"),
)


def diagnose_wrong_file(file: str | Path | bytes) -> str:
    """Return what a file (a path, or its bytes) is instead of the expected kind; empty if unknown."""
    if isinstance(file, bytes):
        head = file[:_HEAD]
    else:
        try:
            with open_regular(file) as opened:
                head = opened.read(_HEAD)
        except (OSError, ValueError):
            return ""
    if not head:
        return "empty: nothing was written to it, or nothing arrived"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return next((name for mark, name in _MARKS if start.startswith(mark)), "")


# Present in a folder while its files are being written.
MARKER = "UNFINISHED"
_UNTIL = "Removed when writing is complete."
_POLL_SECONDS = 0.1
# Common file systems allow 255 bytes; the rest is for suffixes and temporary names.
_LONGEST_STEM = 120


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a file; False, not an error, for invalid names."""
    return os.path.isfile(path)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder; False, not an error, for invalid names."""
    return os.path.isdir(path)


def cache_folder() -> Path:
    """Return the cache folder, which may not exist yet; for a user without a home, one in the temporary folder.

    Raises:
        OutputError: If that one cannot be made, or is another user's.
    """
    if named := os.environ.get("BOXWRIGHT_CACHE"):
        return Path(named)
    with suppress(RuntimeError):  # neither HOME nor an entry in /etc/passwd, as of `docker run --user 12345`
        return Path.home() / ".cache" / "boxwright"
    instead = "name a cache folder with BOXWRIGHT_CACHE"
    if not hasattr(os, "getuid"):
        raise OutputError(f"this user has no home folder; {instead}")
    folder = Path(tempfile.gettempdir(), f"boxwright-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        own = folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made: {cause(error)}; {instead}") from None
    if not own:
        raise OutputError(f"{folder}: belongs to another user; {instead}")
    return folder


def kept_places(path: Path, ending: str) -> tuple[Path, Path]:
    """Return where to keep what was made of a file: hidden beside it, so that globs skip it; else in the cache."""
    digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:24]
    return path.with_name(f".{path.name}{ending}"), cache_folder() / f"{digest}{ending}"


def as_here(named: str) -> str:
    """Return a path from a configuration with Windows' backslashes turned into slashes if nothing exists under it."""
    return named if "\\" not in named or os.path.exists(named) else named.replace("\\", "/")


# What a file is that is none, by its mode's type: reading a pipe may wait forever, and a device may never end.
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading, through links; it is judged once it is open, so that none can take its place.

    All files that others brought are opened here.

    Raises:
        OSError: If it cannot be opened, or is a folder, a pipe, a device or a socket.
        ValueError: For a name with a null byte.
    """
    # Without O_NONBLOCK, opening a pipe would wait for its writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        raise OSError(errno.EINVAL, f"expected a file, found {_KINDS.get(kind, 'something else')}", os.fspath(path))
    return open(descriptor, "rb")


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a regular file of at most `limits.FILE_BYTES`; an OSError or ValueError if it is none."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if problem := FILE_BYTES.exceeded(size):
            raise OSError(errno.EFBIG, problem, os.fspath(path))
        return file.read(size)  # no more, as a file may grow meanwhile


def read_file(path: str | Path, error: type[BoxwrightError] = DataError) -> bytes:
    """Return a file's bytes, as `read_bytes`; raise `error` with the path and the reason if it cannot be read."""
    try:
        return read_bytes(path)
    except (OSError, ValueError) as problem:  # ValueError: a name with a null byte
        raise error(f"{shown(path)}: {cause(problem)}") from None


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits; an OSError if it cannot be read."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def reading_file(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file for reading; errors are a DataError as `read_file` raises it."""
    try:
        with open_regular(path) as file:
            yield file
    except (OSError, ValueError) as problem:
        raise DataError(f"{shown(path)}: {cause(problem)}") from None


class BoundedFile:
    """A file of an archive that refuses to read more at once than any honest header has."""

    def __init__(self, file: IO[bytes], check_end: Callable[[int], None] | None = None) -> None:
        """Wrap a file; `check_end` is called with where each read would end, before it is read."""
        self._file, self._check_end = file, check_end

    def read(self, size: int = -1) -> bytes:
        """Return bytes; raise a ValueError if they are too many at once."""
        if not 0 <= size <= _LONGEST_READ:
            raise ValueError(f"a header of {size} bytes")
        if self._check_end is not None:
            self._check_end(self._file.tell() + size)
        return self._file.read(size)

    def seek(self, position: int, whence: int = 0) -> int:
        """Move to a position, and return it."""
        return self._file.seek(position, whence)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()


def file_size(path: str | Path) -> int:
    """Return a file's size in bytes; 0 if it is unavailable (reading the file will report why)."""
    try:
        return os.path.getsize(path)
    except (OSError, ValueError):
        return 0


def shown(path: str | os.PathLike[str], most: int = 400) -> str:
    """Return a path for messages: cut in the middle if too long, on one line, control characters escaped."""
    return shortened(visible(os.fspath(path)).replace("\n", "\\n"), most)


def cause(error: Exception) -> str:
    """Return why a file could not be read or written, without its name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


@contextmanager
def open_whole(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only when it is completely on disk.

    Until then its bytes are in a hidden file beside it with a unique name. If writing fails, the previous file stays
    and the hidden file is removed; only SIGKILL or a power failure leaves it behind.

    Raises:
        OutputError: If it cannot be written: a full disk, a missing or read-only folder, an address in place of a path.
    """
    path = require_path(path, error=OutputError)
    partial = path.with_name(f".{path.name[:_LONGEST_STEM]}.{os.getpid()}-{uuid4().hex[:12]}.partial")
    try:
        try:
            with partial.open("x+b") as file:
                yield file
                file.flush()
                # The data must be on the disk before the rename: a power failure could otherwise leave an empty file.
                os.fsync(file.fileno())
            partial.replace(path)
            sync_folder(path.parent)
        finally:
            with suppress(OSError, ValueError):
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"{shown(path)}: could not be written: {cause(error)}") from None
    except ValueError as error:
        if "null byte" not in str(error):
            raise
        raise OutputError(f"{shown(path)}: could not be written: {error}") from None


def sync_folder(folder: Path) -> None:
    """Flush a rename to disk, where the system supports it."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_whole(path: str | Path, content: bytes | str) -> Path:
    """Write a file atomically (text as UTF-8) and return its path; raise OutputError as `open_whole` does."""
    try:
        data = content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as error:
        raise OutputError(f"{shown(path)}: could not be written: {error}") from None
    with open_whole(path) as file:
        file.write(data)
    return Path(path)


def make_folder(path: str | Path) -> Path:
    """Create a folder and its parents if missing; raise OutputError if that fails, or an address is given."""
    require_path(path, error=OutputError)
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise OutputError(f"{shown(path)}: this folder cannot be created: {cause(error)}") from None
    return Path(path)


def lock(descriptor: int) -> str | None:
    """Lock an open file until it is closed; raise BlockingIOError if another process holds the lock.

    Returns:
        None if locked; else why it cannot be: the file system's reason, or "" if the system has no file locks.
    """
    if fcntl is None:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        return error.strerror or str(error)
    return None


def unlock(descriptor: int) -> None:
    """Release the lock of an open file, also for processes that were forked while it was held."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def waiting_lock(path: str | Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of a file, which is created and stays; wait while another process holds it.

    Args:
        on_wait: Called once if it has to wait.

    Raises:
        OutputError: If the file cannot be created.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except (OSError, ValueError) as error:
        raise OutputError(f"{shown(path)}: could not be written: {cause(error)}") from None
    with closed_in_children(descriptor):
        refused = wait_for_lock(descriptor, on_wait)
        if refused:
            warnings.warn(
                f"{shown(path)}: this file system cannot lock files ({refused}): let no second process write to the "
                "folder meanwhile",
                stacklevel=3,
            )
        yield


def wait_for_lock(descriptor: int, on_wait: Callable[[], None] = lambda: None) -> str | None:
    """Lock an open file once no other process does, and return what `lock` does."""
    waited = False
    while True:
        try:
            return lock(descriptor)
        except BlockingIOError:
            if not waited:
                on_wait()
            waited = True
            time.sleep(_POLL_SECONDS)


@contextmanager
def closed_in_children(descriptor: int) -> Iterator[None]:
    """Close an open file at the end, and in every process forked until then, which would also hold its lock."""
    held = True

    def close() -> None:
        if held:
            os.close(descriptor)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=close)
    try:
        yield
    finally:
        held = False  # from here on the descriptor may be reused
        os.close(descriptor)


@contextmanager
def unfinished(folder: str | Path, what: str) -> Iterator[Path]:
    """Mark a folder as unfinished while its files are written; the mark stays if the writing fails.

    The mark is a held lock, so that a folder has one writer; a killed process holds nothing.

    Args:
        what: What is being written, for the mark's text and for error messages.

    Raises:
        OutputError: If another process writes to the folder, or the folder or the mark cannot be written.
    """
    marker = make_folder(folder) / MARKER
    try:
        descriptor = _locked(marker)
        with closed_in_children(descriptor):
            _write_holder(marker, descriptor, f"{what}; host {socket.gethostname()}, process {os.getpid()}")
            yield Path(folder)
            if os.name == "posix":  # while locked, as the next writer creates its own mark
                _remove(marker, descriptor)
        if os.name != "posix":  # there an open file cannot be removed
            marker.unlink(missing_ok=True)
    except _MarkError as problem:
        raise OutputError(f"{shown(marker)}: could not be written: {problem}") from None


class _MarkError(Exception):
    """Why a mark could not be written."""


def _locked(marker: Path) -> int:
    """Open a mark, new or left by a killed process, and lock it; return its descriptor."""
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
                f"{holder or 'its name is not written yet'}; write to another folder, or wait until it ends"
            ) from None
        if refused:
            warnings.warn(
                f"{shown(marker.parent)}: this file system cannot lock files ({refused}): a second run can write to "
                "the folder",
                stacklevel=4,
            )
        if os.name != "posix" or _is_still(marker, descriptor):
            return descriptor
        os.close(descriptor)  # its holder removed it between the two calls


def _write_holder(marker: Path, descriptor: int, holder: str) -> None:
    before = os.fstat(descriptor).st_size
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{holder}. {_UNTIL}\n".encode())
        os.fsync(descriptor)
    except OSError as error:
        if not before:  # newly created here: leave the folder as it was
            _remove(marker, descriptor)
        raise _MarkError(cause(error)) from None


def _remove(marker: Path, descriptor: int) -> None:
    """Remove a mark, unless it was removed and another run has created its own."""
    if _is_still(marker, descriptor):
        marker.unlink(missing_ok=True)


def _is_still(path: Path, descriptor: int) -> bool:
    """Return whether an open file still has its name: its previous holder may have removed it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def refuse_unfinished(folder: str | Path) -> None:
    """Raise DataError if writing a folder was interrupted."""
    if is_file(Path(folder) / MARKER):
        raise DataError(
            f"{shown(folder)}: this folder is incomplete: its writer has not finished ({MARKER} names it); "
            f"write it again, or remove {MARKER} to use the folder as it is"
        )


def partial_files(folder: Path) -> list[Path]:
    """Return the temporary files in a folder, left by killed writers or in use by running ones."""
    return sorted(folder.glob(".*.partial"))


def unique_stem(name: str, taken: set[str], allowed: str = "") -> str:
    """Return a valid file stem made from any text (such as an image id), different from all in `taken`, and add it.

    It has letters, digits, dashes, dots, underscores and the characters of `allowed`, at most 120 bytes, with `-2`,
    `-3`… appended where needed. `taken` holds lowercase stems.
    """
    plain = "".join(c if c.isalnum() or c in "-_." or c in allowed else "_" for c in name).lstrip(".") or "_"
    while len(plain.encode("utf-8", "replace")) > _LONGEST_STEM:
        plain = plain[: max(len(plain) * 3 // 4, 1)] if len(plain) > _LONGEST_STEM else plain[:-1]
    plain = plain.encode("utf-8", "replace").decode()
    number, stem = 1, plain
    while stem.lower() in taken:  # lowercase: some file systems do not distinguish a.png from A.png
        number += 1
        stem = f"{plain}-{number}"
    taken.add(stem.lower())
    return stem
