"""Folders of files, local or in an object store (s3://…, gs://…), through PyArrow."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from boxwright.base.errors import BoxwrightError, DataError, OutputError
from boxwright.base.files import cause, make_folder, open_regular, write_whole

T = TypeVar("T")


def is_address(word: str) -> bool:
    """Return whether a word is an address outside the local file system."""
    return "://" in word


def absolute(word: str) -> str:
    """Return a path, pattern or list (`@list.txt`) from the root on; an address as it is."""
    if is_address(word):
        return word
    return (
        f"@{os.path.abspath(word[1:])}" if word.startswith("@") and not os.path.exists(word) else os.path.abspath(word)
    )


def require_pyarrow() -> Any:
    """Return PyArrow; DataError if it is not installed."""
    try:
        import pyarrow as pa
    except ImportError:
        raise DataError("Parquet and object stores need PyArrow: pip install 'boxwright[parquet]'") from None
    return pa


class Store:
    """A folder whose files are listed, read, and written atomically."""

    def __init__(self, address: str) -> None:
        """Refer to a folder, without opening it.

        Args:
            address: A path, or s3://bucket/folder, or gs://…; AWS_ENDPOINT_URL selects another S3 service than
                Amazon's.

        Raises:
            DataError: For an address with a query.
        """
        if is_address(address) and "?" in address:
            raise DataError(f"{address}: a query (`?…`) is not supported; set AWS_ENDPOINT_URL and the like instead")
        self.address = address.rstrip("/")

    def make(self) -> None:
        """Create the folder if it is missing."""
        if is_address(self.address):
            system, path = _resolved(self.address)
            _tried(self.address, OutputError, lambda: system.create_dir(path, recursive=True))
        else:
            make_folder(self.address)

    def names(self) -> list[str]:
        """Return its files' names, sorted; empty if the folder is missing."""
        if not is_address(self.address):
            folder = Path(self.address)
            return sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
        return sorted(path.rsplit("/", 1)[-1] for path in _listed(self.address, recursive=False))

    def has(self, name: str) -> bool:
        """Return whether it has a file of that name; unlike `names`, in the same time however many files it has."""
        place = f"{self.address}/{name}"
        if not is_address(self.address):
            return Path(place).is_file()
        from pyarrow.fs import FileType

        system, path = _resolved(place)
        return bool(_tried(place, DataError, lambda: system.get_file_info(path)).type == FileType.File)

    def open(self, name: str) -> BinaryIO:
        """Open one of its files for reading."""
        return open_file(f"{self.address}/{name}")

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically."""
        place = f"{self.address}/{name}"
        if not is_address(self.address):
            write_whole(place, content)
            return
        system, path = _resolved(place)

        def put() -> None:  # object stores show a file when its stream is closed
            with system.open_output_stream(path) as stream:
                stream.write(content)

        _tried(place, OutputError, put)

    def files(self) -> list[str]:
        """Return the addresses of all files in it, recursively, sorted."""
        if not is_address(self.address):
            return sorted(str(path) for path in Path(self.address).rglob("*") if path.is_file())
        # PyArrow lists paths without the scheme.
        scheme = self.address.split("://", 1)[0]
        return sorted(f"{scheme}://{path}" for path in _listed(self.address, recursive=True))


def open_file(address: str) -> BinaryIO:
    """Open a path or an object store's address for reading; DataError if it cannot be opened."""
    if not is_address(address):
        return _tried(address, DataError, lambda: open_regular(address))
    system, path = _resolved(address)
    file: BinaryIO = _tried(address, DataError, lambda: system.open_input_file(path))
    return file


def open_parquet(address: str) -> Any:
    """Open a path or an object store's address as PyArrow's own file object; DataError if it cannot be opened.

    PyArrow's reader threads hold the file, and data read from it, a little longer than the call that requested it. If
    it were a Python object, releasing it during interpreter shutdown would abort the process.
    """
    if is_address(address):
        return open_file(address)
    open_file(address).close()  # it is a regular file
    return _tried(address, DataError, lambda: require_pyarrow().OSFile(os.fsencode(address)))


def _listed(address: str, *, recursive: bool) -> list[str]:
    from pyarrow.fs import FileSelector, FileType

    system, path = _resolved(address)
    selector = FileSelector(path, allow_not_found=True, recursive=recursive)
    entries = _tried(address, DataError, lambda: system.get_file_info(selector))
    return [entry.path for entry in entries if entry.type == FileType.File]


def _resolved(address: str) -> tuple[Any, str]:
    require_pyarrow()
    from pyarrow.fs import FileSystem

    system, path = _tried(address, DataError, lambda: FileSystem.from_uri(address))
    return system, path


def _tried(address: str, kind: type[BoxwrightError], act: Callable[[], T]) -> T:
    """Return an action's result; PyArrow's errors (OSError, ValueError) become `kind`."""
    try:
        return act()
    except (OSError, ValueError, TypeError) as error:
        raise kind(f"{address}: {cause(error).splitlines()[0]}") from None
