"""A server on this machine whose answers a test chooses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Reply:
    """One answer.

    Attributes:
        body: What is sent.
        headers: In place of the usual ones of the same names; None leaves one out.
        cut: The number of bytes after which the connection ends; None for all.
        stall: Whether nothing more is sent then, until the server stops.
    """

    body: bytes = b""
    status: int = 200
    headers: dict[str, str | None] = field(default_factory=dict)
    cut: int | None = None
    stall: bool = False


Answer = Callable[[str, str | None], Reply]


@dataclass
class FileServer:
    """A running server: its address, and the path and range of each request so far."""

    address: str
    requests: list[tuple[str, str | None]]


def ranges(body: bytes, *, etag: str | None = '"1"', cut: int | None = None) -> Answer:
    """Return answers of a server that has a file, and sends the rest of it where that is asked for."""

    def answer(path: str, asked: str | None) -> Reply:
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        rest = body[start:]
        whole = {"ETag": etag, "Content-Length": str(len(rest))}
        if start:
            whole["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        return Reply(rest, 206 if start else 200, whole, cut)

    return answer


@contextmanager
def file_server(answers: Answer | list[Answer]) -> Iterator[FileServer]:
    """Run a server; of a list of answers each serves one request, the last all others."""
    requests: list[tuple[str, str | None]] = []
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            requests.append((self.path, asked))
            number = min(len(requests), len(answers)) - 1 if isinstance(answers, list) else 0
            reply = (answers[number] if isinstance(answers, list) else answers)(self.path, asked)
            self.send_response(reply.status)
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(reply.body))}
            for name, value in {**headers, **reply.headers}.items():
                if value is not None:
                    self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):  # a client that has seen enough hangs up
                self.wfile.write(reply.body if reply.cut is None else reply.body[: reply.cut])
                self.wfile.flush()
            if reply.stall:
                stopped.wait()
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield FileServer(f"http://127.0.0.1:{server.server_port}", requests)
    finally:
        stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()
