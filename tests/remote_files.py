"""Files at addresses, in memory: a stand-in for an object store whose connections can be cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from boxwright.base import remote


class Bucket:
    """A file system of fsspec that counts what is read, and fails as it is told.

    Attributes:
        reads: (name, first byte) of each read.
        cuts: What further reads do: raise an error, or return so many bytes.
    """

    def __init__(self) -> None:
        self.files = MemoryFileSystem(skip_instance_cache=True)
        self.reads: list[tuple[str, int]] = []
        self.cuts: list[Exception | int] = []
        self.versions: dict[str, int] = {}

    def put(self, address: str, content: bytes) -> str:
        self.files.pipe_file(self._strip_protocol(address), content)
        self.versions[self._strip_protocol(address)] = self.versions.get(self._strip_protocol(address), 0) + 1
        return address

    def cat_file(self, address: str, start: int, end: int) -> bytes:
        self.reads.append((address.rpartition("/")[2], start))
        cut = self.cuts.pop(0) if self.cuts else None
        if isinstance(cut, Exception):
            raise cut
        return bytes(self.files.cat_file(self._strip_protocol(address), start=start, end=end))[:cut]

    def info(self, address: str) -> dict[str, Any]:
        name = self._strip_protocol(address)
        return {**self.files.info(name), "ETag": self.versions.get(name)}

    def glob(self, pattern: str, *, detail: bool) -> dict[str, dict[str, Any]]:
        del detail
        return {name.lstrip("/"): self.info(name) for name in self.files.glob(self._strip_protocol(pattern))}

    def find(self, folder: str, *, detail: bool) -> dict[str, dict[str, Any]]:
        del detail
        return {name.lstrip("/"): self.info(name) for name in self.files.find(self._strip_protocol(folder))}

    def _strip_protocol(self, address: str) -> str:
        return address.partition("://")[2] or address


@contextmanager
def open_bucket(cache: Path) -> Iterator[Bucket]:
    """Have all addresses lead to a bucket, whose files come in blocks of 1000 bytes, with a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        bucket = Bucket()
        bucket.files.store = {}
        bucket.files.pseudo_dirs = [""]
        patch.setattr(remote, "_file_system", lambda _: bucket)
        patch.setattr(remote, "BLOCK_BYTES", 1000)
        patch.setattr(remote, "DELAYS", (0.0, 0.0))
        patch.setenv("BOXWRIGHT_CACHE", str(cache))
        yield bucket
