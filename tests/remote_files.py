"""Stand-ins for object stores whose connections can be cut: files in memory, and a server on the loopback address."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from boxwright.base import remote


class Bucket:
    """A file system of fsspec that counts what is read, and fails as it is told.

    Attributes:
        reads: (name, first byte) of each read.
        cuts: What further reads do: raise an error, or return so many bytes.
        writes: The name of each file that was sent, or was to be.
        refusals: The errors that further writes raise.
    """

    def __init__(self) -> None:
        self.files = MemoryFileSystem(skip_instance_cache=True)
        self.reads: list[tuple[str, int]] = []
        self.cuts: list[Exception | int] = []
        self.writes: list[str] = []
        self.refusals: list[Exception] = []
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

    def put_file(self, path: str, address: str) -> None:
        self.writes.append(address.rpartition("/")[2])
        if self.refusals:
            raise self.refusals.pop(0)
        self.put(address, Path(path).read_bytes())

    def rm_file(self, address: str) -> None:
        self.files.rm_file(self._strip_protocol(address))

    def info(self, address: str) -> dict[str, Any]:
        name = self._strip_protocol(address)
        return {**self.files.info(name), "ETag": self.versions.get(name)}

    def glob(self, pattern: str, *, detail: bool) -> dict[str, dict[str, Any]]:
        del detail
        return {name.lstrip("/"): self.info(name) for name in self.files.glob(self._strip_protocol(pattern))}

    def find(self, folder: str, *, detail: bool) -> dict[str, dict[str, Any]]:
        del detail
        return {name.lstrip("/"): self.info(name) for name in self.files.find(self._strip_protocol(folder))}

    def names(self, folder: str) -> list[str]:
        """Return the names of the files below an address."""
        start = len(self._strip_protocol(folder)) + 1
        return sorted(name.lstrip("/")[start:] for name in self.files.find(self._strip_protocol(folder)))

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


class Cutting:
    """Passes connections on to a server, and breaks off long requests and answers in the middle.

    Attributes:
        requests_to_cut: How many more of the requests of more than 2000 bytes.
        answers_to_cut: How many more of the answers of more than 2000 bytes.
    """

    def __init__(self, port: int) -> None:
        self.target, self.requests_to_cut, self.answers_to_cut = port, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed at the end
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                for name, ends in (("requests_to_cut", (near, far)), ("answers_to_cut", (far, near))):
                    threading.Thread(target=self._pass, args=(name, *ends), daemon=True).start()

    def _pass(self, name: str, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if len(data) > 2000 and (left := getattr(self, name)):
                    setattr(self, name, left - 1)
                    target.sendall(data[: len(data) // 2])
                    break
                target.sendall(data)
            for end in (source, target):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def open_store(cache: Path) -> Iterator[tuple[Any, Cutting]]:
    """Have all addresses of S3 lead to a server on the loopback address with a bucket named bucket.

    Yields:
        s3fs's file system, which no connection is cut of, and what cuts those of all others.
    """
    s3fs = pytest.importorskip("s3fs")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    cutting = Cutting(port)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("BOXWRIGHT_CACHE", str(cache))
        patch.setattr(remote, "DELAYS", (0.1,) * 5)
        try:
            s3fs.S3FileSystem.clear_instance_cache()  # those of another test know another server
            store = s3fs.S3FileSystem(endpoint_url=f"http://{host}:{port}", use_listings_cache=False)
            urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()  # of another test's files
            store.mkdir("bucket")
            patch.setenv("AWS_ENDPOINT_URL", cutting.address)
            yield store, cutting
        finally:
            cutting.listener.close()
            server.stop()
