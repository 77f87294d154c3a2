"""Archives of data: .zip and .tar, unpacked once into the cache, and other folders that are filled once.

An archive may come from anywhere. Nothing is written outside its folder: names are checked, files are written before
any link exists, links that leave the folder are refused, and so are devices. What a Mac adds is dropped.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import posixpath
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO

from boxwright.base.errors import DataError, OutputError
from boxwright.base.files import BoundedFile, cache_folder, cause, is_file, is_folder, make_folder, open_regular, shown
from boxwright.base.limits import DATA_BYTES, DATA_FILES

_FOLDER = "data"


def kept_folder(sources: Sequence[Path]) -> Path:
    """Return where in the cache the folder of some files is, by their paths, sizes and times; it may not exist yet.

    Raises:
        DataError: If one of the files is not there.
    """
    digest = hashlib.sha256()
    for source in sources:
        try:
            state = source.stat()
        except (OSError, ValueError) as error:
            raise DataError(f"{shown(source)}: {cause(error)}") from None
        digest.update(f"{os.path.abspath(source)}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    # The name is part of it, as a split may show in it alone.
    return cache_folder() / _FOLDER / digest.hexdigest()[:32] / sources[0].name.split(".")[0]


def filled_folder(sources: Sequence[Path], fill: Callable[[Path], None]) -> Path:
    """Return the folder of some files in the cache, after filling it if it is new, as `fill_folder` does.

    Args:
        sources: The files that it is made of.
        fill: Writes into an empty folder.

    Raises:
        DataError: If one of the files is not there.
        OutputError: If the cache cannot be written: a full disk, a read-only folder.
    """
    return fill_folder(kept_folder(sources), fill)


def fill_folder(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, after filling it if it is new.

    It appears under its name only when it is whole. Of two processes that fill it at once, one does so in vain.

    Args:
        fill: Writes into an empty folder.

    Raises:
        OutputError: If the cache cannot be written: a full disk, a read-only folder.
    """
    if is_folder(folder):
        return folder
    make_folder(folder.parent)
    try:
        partial = Path(tempfile.mkdtemp(prefix=".", suffix=".partial", dir=folder.parent))
    except OSError as error:
        raise OutputError(f"{shown(folder.parent)}: could not be written: {cause(error)}") from None
    try:
        fill(partial)
        # A new folder of mkdtemp is its owner's alone; a cache may be shared.
        partial.chmod(0o755)
        partial.rename(folder)
    except OSError as error:
        if not is_folder(folder):
            raise OutputError(f"{shown(folder)}: could not be written: {cause(error)}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


_ZIP = (".zip",)
_TAR = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".tbz")
_MAC_FOLDER, _MAC_PREFIX = "__MACOSX", "._"
_DRIVE = re.compile(r"[A-Za-z]:")
_CHUNK = 1 << 20
_LONGEST_LINK = 4096
_COMPRESSED: dict[bytes, Callable[[BinaryIO], Any]] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
# A link that leads to itself is followed until Python's stack ends.
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    OSError,
    ValueError,
    OverflowError,
    RecursionError,
)
_ENCRYPTED = 0x1


def is_archive(path: str | Path) -> bool:
    """Return whether a path is a file that is named like an archive."""
    return str(path).lower().endswith((*_ZIP, *_TAR)) and is_file(path)


def unpacked(path: Path) -> Path:
    """Return the folder in the cache with an archive's files, after unpacking it if it is new or has changed.

    Raises:
        DataError: If it is damaged, encrypted, larger than the limits, or has names or links that leave its folder.
        OutputError: If the cache cannot be written, or the disk has no room.
    """

    def fill(folder: Path) -> None:
        unpacking = _Unpacking(path, folder)
        with _damage_named(path):
            if path.name.lower().endswith(_ZIP):
                _unpack_zip(path, unpacking)
            else:
                _unpack_tar(path, unpacking)
        unpacking.link_all()

    return filled_folder([path], fill)


@dataclass
class _Unpacking:
    """An archive that is being unpacked.

    Attributes:
        links: Names, places and targets of links, to be made when all files are written.
    """

    path: Path
    folder: Path
    files: int = 0
    size: int = 0
    links: list[tuple[str, Path, str]] = field(default_factory=list)

    def target_path(self, name: str) -> Path | None:
        """Return where a member belongs; None for one that is dropped."""
        # Some Windows programs write backslashes.
        named = name.replace("\\", "/")
        parts = [part for part in named.split("/") if part not in ("", ".")]
        if named.startswith("/") or _DRIVE.match(named) or ".." in parts or "\0" in named:
            raise DataError(f"{shown(self.path)}: {shown(name, 100)!r} would be unpacked outside its folder")
        self.files += 1
        if problem := DATA_FILES.exceeded(self.files):
            raise DataError(f"{shown(self.path)}: {problem}")
        if not parts or _MAC_FOLDER in parts or parts[-1].startswith(_MAC_PREFIX):
            return None
        return self.folder.joinpath(*parts)

    def expect(self, size: int) -> None:
        """Raise an error if some bytes exceed the limit or the room on the disk."""
        if problem := DATA_BYTES.exceeded(size):
            raise DataError(f"{shown(self.path)}: {problem}")
        free = shutil.disk_usage(self.folder).free
        if size > free:
            raise OutputError(
                f"{shown(self.folder.parent)}: no room for {size:,} bytes of {self.path.name}: {free:,} are free"
            )

    def write(self, member: IO[bytes], name: str) -> None:
        """Write a member's bytes."""
        place = self.target_path(name)
        if place is None:
            return
        with self._writing(name):
            place.parent.mkdir(parents=True, exist_ok=True)
            file = place.open("wb")
        with file:
            while chunk := member.read(_CHUNK):
                self.size += len(chunk)
                # What was written counts, as a header may state less.
                if problem := DATA_BYTES.exceeded(self.size):
                    raise DataError(f"{shown(self.path)}: {problem}")
                with self._writing(name):
                    file.write(chunk)
            with self._writing(name):
                file.flush()

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Name the archive and the member in errors, not the temporary folder."""
        try:
            yield
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            raise DataError(f"{shown(self.path)}: it has a file and a folder named {shown(name, 100)!r}") from None
        except (OSError, ValueError) as error:
            where = shown(self.folder.parent)
            raise OutputError(
                f"{shown(self.path)}: {shown(name, 100)!r} could not be written in {where}: {cause(error)}"
            ) from None

    def link(self, name: str, target: str) -> None:
        """Note a link to be made later."""
        if (place := self.target_path(name)) is not None:
            self.links.append((name, place, target))

    def link_all(self) -> None:
        """Make the links, and refuse the archive if any leads outside."""
        root = os.path.realpath(self.folder)
        for name, place, target in self.links:
            # The parent may be a link that was made before.
            parent = os.path.realpath(place.parent)
            aim = os.path.realpath(os.path.join(parent, target))
            if posixpath.isabs(target) or not (_within(parent, root) and _within(aim, root)):
                raise DataError(f"{shown(self.path)}: the link {shown(name, 100)!r} leads outside its folder")
            with self._writing(name):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(target)
        # A later link may change where an earlier one leads.
        for name, place, _ in self.links:
            if not _within(os.path.realpath(place), root):
                raise DataError(f"{shown(self.path)}: the link {shown(name, 100)!r} leads outside its folder")


def _within(path: str, root: str) -> bool:
    return os.path.commonpath([path, root]) == root


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turn what the libraries raise for damaged archives into a DataError."""
    try:
        yield
    except NotImplementedError as error:
        raise DataError(f"{shown(path)}: cannot be unpacked: {error}; unpack it, and pass the folder") from None
    except _DAMAGE as error:
        raise DataError(f"{shown(path)}: a damaged archive: {cause(error)}") from None


def _unpack_zip(path: Path, unpacking: _Unpacking) -> None:
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        unpacking.expect(sum(member.file_size for member in members))
        for member in members:
            if not member.filename:
                raise ValueError("a file without a name")
            if member.flag_bits & _ENCRYPTED:
                raise DataError(f"{shown(path)}: it is encrypted; unpack it with its password, and pass the folder")
            mode = member.external_attr >> 16
            if member.is_dir() or stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFLNK):
                _check_folder(member.is_dir(), member.filename, unpacking)
                continue
            with archive.open(member) as content:
                if stat.S_ISLNK(mode):
                    target = content.read(_LONGEST_LINK).decode("utf-8", "replace")
                    unpacking.link(member.filename, target)
                else:
                    unpacking.write(content, member.filename)


@contextmanager
def _decompressed(file: BinaryIO) -> Iterator[IO[bytes]]:
    opening = _COMPRESSED.get(file.read(2))
    file.seek(0)
    if opening is None:
        yield file
        return
    with opening(file) as whole:
        yield whole


def _unpack_tar(path: Path, unpacking: _Unpacking) -> None:
    # tarfile's own choice reads headers of any size.
    with (
        open_regular(path) as file,
        _decompressed(file) as whole,
        tarfile.open(fileobj=BoundedFile(whole), mode="r:") as archive,  # type: ignore[call-overload]
    ):
        for member in archive:
            if member.issym():
                unpacking.link(member.name, member.linkname)
                continue
            if not (member.isfile() or member.islnk()):
                _check_folder(member.isdir(), member.name, unpacking)
                continue
            unpacking.expect(member.size)
            try:
                content = archive.extractfile(member)
            except KeyError:
                raise DataError(
                    f"{shown(path)}: {shown(member.name, 100)!r} links to a file that is not in it"
                ) from None
            if content is None:
                raise DataError(f"{shown(path)}: {shown(member.name, 100)!r} links to something else than a file")
            with content:
                unpacking.write(content, member.name)


def _check_folder(is_folder: bool, name: str, unpacking: _Unpacking) -> None:  # noqa: FBT001  # the answer, not a switch
    """Check the name of a folder, which its files create; raise an error for a device, a pipe or a socket."""
    if not is_folder:
        raise DataError(f"{shown(unpacking.path)}: {shown(name, 100)!r} is neither a file nor a folder nor a link")
    unpacking.target_path(name)
