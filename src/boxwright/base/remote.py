"""Files at addresses (s3://, gs://, hf://, http:// and https://), which are read through fsspec.

A file is read in blocks, which all processes of a machine share in the cache folder, so that each is fetched once while
it is in use. A connection that is cut is opened again where it was, a few times.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from boxwright.base.errors import DataError, OutputError, shortened
from boxwright.base.files import (
    cache_folder,
    cause,
    make_folder,
    open_regular,
    open_whole,
    unlock,
    wait_for_lock,
    write_whole,
)
from boxwright.base.limits import REMOTE_CACHE_BYTES
from boxwright.base.text import without_secrets

T = TypeVar("T")

_ADDRESS = re.compile(r"(s3|gs|hf|https?)://[^/]", re.IGNORECASE)
# What fsspec opens each with: the package, and what installs it.
_PACKAGES = {
    "s3": ("s3fs", "boxwright[s3]"),
    "gs": ("gcsfs", "boxwright[gcs]"),
    "hf": ("huggingface_hub", "huggingface_hub"),
    "http": ("aiohttp", "boxwright[http]"),
    "https": ("aiohttp", "boxwright[http]"),
}
BLOCK_BYTES = 8 << 20
# Seconds before each further try.
DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0)
_SOCKET_SECONDS = 60.0
_LOCKS = 64
# What tells that a file has changed, in the terms of each file system.
_VERSIONS = ("ETag", "etag", "generation", "blob_id", "sha", "md5Hash", "Content-MD5", "LastModified", "Last-Modified")
# These say that another try would end in the same way.
_FINAL = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError),
    *(NotImplementedError, ValueError),
)
_REFUSALS = (400, 401, 403, 410)
# How to say who asks.
_IDENTIFICATION = {
    "s3": "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`",
}


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is an address that can be read."""
    return isinstance(path, str) and _ADDRESS.match(path) is not None


@dataclass(frozen=True)
class RemoteFile:
    """A file at an address, as it was when it was listed.

    Attributes:
        version: What its server says of its content: another text once it has changed; empty if it says nothing.
    """

    address: str
    size: int
    version: str

    def __fspath__(self) -> str:
        return self.address

    def __str__(self) -> str:
        return without_secrets(self.address)

    @property
    def name(self) -> str:
        """The last part of the address."""
        return _split_query(self.address)[0].rstrip("/").rsplit("/", 1)[-1]

    @property
    def digest(self) -> str:
        """What the file is called in the cache: another name once it has changed."""
        return hashlib.sha256(f"{self.address}\0{self.size}\0{self.version}".encode()).hexdigest()[:32]

    def beside(self, name: str) -> str:
        """Return the address of another file in its folder."""
        return address_in(folder_of(self.address), name)

    def open(self) -> BinaryIO:
        """Open the file; blocks are fetched as they are read."""
        return io.BufferedReader(_BlockReader(self))

    def block(self, number: int) -> Path:
        """Return the file in the cache with one of the blocks, which is fetched if it is not there."""
        start = number * BLOCK_BYTES
        length = min(BLOCK_BYTES, self.size - start)
        return _cached(f"{self.digest}-{number}", length, lambda path: write_whole(path, self.read(start, length)))

    def read(self, start: int, length: int) -> bytes:
        """Return some bytes from the server.

        Raises:
            DataError: If they do not arrive, also after further tries.
        """

        def fetch() -> bytes:
            data = bytes(_file_system(self.address).cat_file(self.address, start=start, end=start + length))
            if len(data) > length:
                raise NotImplementedError("its server does not send parts of files; copy it and name the copy")
            if len(data) < length:
                raise OSError(f"{len(data):,} of {length:,} bytes arrived")
            return data

        return _persistently(self.address, fetch) if length else b""

    def local_copy(self) -> Path:
        """Return a copy of the whole file in the cache, which is fetched if it is not there."""
        return _cached(f"{self.digest}-{self.name[-80:]}", self.size, lambda path: download_remote(self, path))


class _BlockReader(io.RawIOBase):
    def __init__(self, file: RemoteFile) -> None:
        self._file, self._position = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._position >= self._file.size:
            return 0
        number, within = divmod(self._position, BLOCK_BYTES)
        with _opened(lambda: self._file.block(number)) as block:
            block.seek(within)
            count = block.readinto(buffer)
        self._position += count
        return int(count)


@contextmanager
def _opened(find: Callable[[], Path]) -> Iterator[Any]:
    """Open a file of the cache; it is found once more if another process has removed it meanwhile."""
    try:
        file = open_regular(find())
    except FileNotFoundError:
        file = open_regular(find())
    with file:
        yield file


def remote_file(address: str) -> RemoteFile:
    """Return the file at an address.

    Raises:
        DataError: If there is none, its server cannot be reached or does not tell its size, or a package is missing.
    """
    state = _persistently(address, lambda: _file_system(address).info(address))
    return _described(address, state)


def find_remote_file(address: str) -> RemoteFile | None:
    """Return the file at an address, or None if there is none; a DataError if that cannot be seen."""

    def look() -> dict[str, Any] | None:
        with suppress(FileNotFoundError):
            state: dict[str, Any] = _file_system(address).info(address)
            return state
        return None

    state = _persistently(address, look)
    return None if state is None else _described(address, state)


def find_remote(pattern: str) -> list[RemoteFile]:
    """Return the files that a pattern of addresses matches, by name; of an address without wildcards, that file.

    Raises:
        DataError: As `remote_file`; a pattern that matches nothing gives an empty list.
    """
    if not is_pattern(pattern):
        return [remote_file(pattern)]
    system = _file_system(pattern)
    found = _persistently(pattern, lambda: system.glob(pattern, detail=True))
    files = {name: state for name, state in found.items() if state["type"] == "file"}
    return [_described(_with_scheme(name, pattern), files[name]) for name in sorted(files)]


def list_remote(folder: str) -> dict[str, RemoteFile]:
    """Return all files below an address, by their names from there on; empty where there are none.

    Raises:
        DataError: As `remote_file`, and for a web server, which cannot list files.
    """
    if not is_listable(folder):
        raise DataError(f"{without_secrets(folder)}: a web server does not list its files; name each")
    system = _file_system(folder)
    found = _persistently(folder, lambda: system.find(folder, detail=True))
    start = len(str(system._strip_protocol(folder)).rstrip("/")) + 1
    return {name[start:]: _described(_with_scheme(name, folder), state) for name, state in found.items()}


def is_pattern(address: str) -> bool:
    """Return whether an address has wildcards, which a web server's cannot have."""
    return is_listable(address) and any(character in address for character in "*?[")


def is_listable(address: str) -> bool:
    """Return whether the files of a folder at an address can be listed: a web server's cannot."""
    return not address.lower().startswith("http")


def folder_of(address: str) -> str:
    """Return the address of a file's folder; a query, as signed addresses have, stays at its end."""
    plain, query = _split_query(address)
    return f"{plain.rpartition('/')[0]}{query}"


def address_in(folder: str, name: str) -> str:
    """Return the address of a file in a folder; a query of the folder's stays at its end."""
    plain, query = _split_query(folder)
    return f"{plain.rstrip('/')}/{name}{query}"


def _split_query(address: str) -> tuple[str, str]:
    """Return an address without its query, and that with its mark; elsewhere than on the web, `?` is a wildcard."""
    plain, mark, query = (address, "", "") if is_listable(address) else address.partition("?")
    return plain, f"{mark}{query}"


def readable_copy(path: str) -> str:
    """Return a path, or for an address the path of a copy of its file in the cache."""
    return str(remote_file(path).local_copy()) if is_remote(path) else path


def download_remote(file: RemoteFile, path: Path) -> None:
    """Copy a file at an address to a path, where it appears only when it is whole.

    Raises:
        DataError: If it does not arrive, also after further tries.
        OutputError: If it cannot be written.
    """
    with open_whole(path) as target:
        for start in range(0, file.size, BLOCK_BYTES):
            target.write(file.read(start, min(BLOCK_BYTES, file.size - start)))


def upload(path: Path, address: str) -> None:
    """Copy a file to an address, where it appears under its name only when it is whole.

    Raises:
        OutputError: If it does not arrive, also after further tries.
    """

    def put() -> None:
        size = path.stat().st_size
        system = _file_system(address)
        system.put_file(str(path), address)
        if (arrived := system.info(address)["size"]) < size:
            raise OSError(f"{arrived:,} of {size:,} bytes arrived")

    try:
        _persistently(address, put, "written")
    except DataError as error:
        raise OutputError(str(error)) from None


def remove_remote(address: str) -> None:
    """Remove a file at an address, if there is one; an OutputError if that fails."""

    def remove() -> None:
        with suppress(FileNotFoundError):
            _file_system(address).rm_file(address)

    try:
        _persistently(address, remove, "removed")
    except DataError as error:
        raise OutputError(str(error)) from None


def _described(address: str, state: dict[str, Any]) -> RemoteFile:
    if state.get("type") == "directory":
        raise DataError(f"{without_secrets(address)}: expected a file, found a folder")
    if not isinstance(state.get("size"), int):
        raise DataError(f"{without_secrets(address)}: its server does not tell its size; copy it and name the copy")
    return RemoteFile(address, state["size"], next((str(state[key]) for key in _VERSIONS if state.get(key)), ""))


def _with_scheme(name: str, address: str) -> str:
    return f"{address.split('://', 1)[0]}://{name}"


def _file_system(address: str) -> Any:
    """Return fsspec's file system of an address, which keeps no listing, and none of whose waits is without end.

    It is asked for each time: fsspec has one a process, as threads do not live on in a forked one.
    """
    scheme = address.split("://", 1)[0].lower()
    package, source = _PACKAGES[scheme]
    try:
        __import__(package)
    except ImportError:
        raise DataError(f"{_shown(address)}: {scheme}:// needs {package}: pip install '{source}'") from None
    import fsspec

    options: dict[str, Any] = {"use_listings_cache": False}
    if package == "aiohttp":
        import aiohttp

        seconds = aiohttp.ClientTimeout(total=None, sock_connect=_SOCKET_SECONDS, sock_read=_SOCKET_SECONDS)
        options["client_kwargs"] = {"timeout": seconds, "trust_env": True}
    return fsspec.filesystem(scheme, **options)


def _persistently(address: str, act: Callable[[], T], what: str = "read") -> T:
    """Return an action's result; it is tried again a few times where it fails as cut connections do.

    Args:
        what: What cannot be done, for the message.
    """
    # gcsfs tries again by itself, for half a minute.
    delays = DELAYS[:1] if address.lower().startswith("gs:") else DELAYS
    tries = 0
    while True:
        try:
            return act()
        except _FINAL as error:
            raise DataError(f"{_shown(address)}: {_reason(error, what)}") from None
        except _unidentified() as error:
            hint = _IDENTIFICATION.get(address.split("://", 1)[0].lower(), "")
            raise DataError(f"{_shown(address)}: {_reason(error, what).rstrip('.')}; {hint}") from None
        except _cuts() as error:
            if tries == len(delays) or getattr(error, "status", None) in _REFUSALS:
                raise DataError(
                    f"{_shown(address)}: cannot be {what}, in {tries + 1} tries: {_reason(error, what)}"
                ) from None
            time.sleep(delays[tries])
            tries += 1


def _shown(address: str) -> str:
    return shortened(without_secrets(address), 400)


def _reason(error: Exception, what: str) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file" if what == "read" else "no such bucket"
    lines = cause(error).strip().splitlines()
    return shortened(without_secrets(lines[0] if lines else type(error).__name__), 200)


def _cuts() -> tuple[type[Exception], ...]:
    """Return the errors that tell of connections, of the packages that are in use."""
    return (
        *(OSError, EOFError),
        *_in_use("http.client", "HTTPException"),
        *_in_use("aiohttp", "ClientError"),
        *_in_use("botocore.exceptions", "BotoCoreError", "ClientError"),
        *_in_use("httpx", "HTTPError"),
        *_in_use("gcsfs.retry", "HttpError"),
    )


def _unidentified() -> tuple[type[Exception], ...]:
    """Return the errors that say that nobody is named who asks, of the packages that are in use."""
    return (
        *_in_use("botocore.exceptions", "NoCredentialsError", "PartialCredentialsError"),
        *_in_use("google.auth.exceptions", "GoogleAuthError"),
    )


def _in_use(module: str, *names: str) -> list[type[Exception]]:
    found = (getattr(sys.modules.get(module), name, None) for name in names)
    return [kind for kind in found if kind is not None]


def made_file(name: str, size: int, make: Callable[[Path], object]) -> Path:
    """Return the file of a name in the cache, after making it if it is not there: what takes long to read otherwise.

    Args:
        size: About how large it will be.
        make: Writes it, whole or not at all; it may read files at addresses.
    """
    # Locks of its own: one for a block may be taken while this one is held.
    return _kept(name, None, size, make, ".lock-made")


def _cached(name: str, size: int, fetch: Callable[[Path], object]) -> Path:
    """Return the file of a name in the cache, of a known size, after fetching it if it is not there."""
    return _kept(name, size, size, fetch, ".lock")


def _kept(name: str, size: int | None, room: int, make: Callable[[Path], object], locks: str) -> Path:
    """Return the file of a name in the cache, after making it if it is not there.

    Of the processes that want it at once, one makes it. Files that were not used for the longest make room.
    """
    folder = cache_folder() / "remote"
    path = folder / name
    if _is_there(path, size):
        return path
    make_folder(folder)
    with _locked(folder / f"{locks}-{_number(name) % _LOCKS}"):
        if not _is_there(path, size):
            _make_room(folder, room, name)
            make(path)
    return path


def _number(name: str) -> int:
    """Return a number below 2³² that follows from a name, as if drawn."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)


def _is_there(path: Path, size: int | None) -> bool:
    try:
        if size is not None and path.stat().st_size != size:
            return False
        os.utime(path)  # it was used now
    except OSError:
        return False
    return True


def _make_room(folder: Path, size: int, name: str) -> None:
    """Remove the files of the cache that were not used for the longest, until a new file is within its limit.

    Looking at all files for each small one would take longer than to fetch it: there is a look for each hundredth of
    the limit on average, by chance of the name, and that much stays free.
    """
    limit = REMOTE_CACHE_BYTES.value
    spare = limit // 100
    if _number(name) * spare >= size << 32:
        return
    with os.scandir(folder) as entries:
        files = []
        for entry in entries:
            with suppress(OSError):  # another process removed it
                state = entry.stat()
                if not entry.name.startswith(".lock-") and not entry.name.endswith(".partial"):
                    files.append((state.st_mtime_ns, state.st_size, entry.path))
    excess = sum(count for _, count, _ in files) + size - (limit - spare)
    for _, count, path in sorted(files) if excess > 0 else ():
        if excess <= 0:
            return
        with suppress(OSError):
            os.unlink(path)
            excess -= count


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock among processes, where the file system has locks; else two may fetch the same."""
    with path.open("ab") as file:
        wait_for_lock(file.fileno())
        try:
            yield
        finally:
            unlock(file.fileno())  # closing alone would leave it to a process that was forked meanwhile
