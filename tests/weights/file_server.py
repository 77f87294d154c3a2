"""A server on this machine whose answers a test chooses."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from tests.http_servers import running_server


@dataclass
class Reply:
    """One answer.

    Attributes:
        body: What is sent.
        headers: In place of the usual ones of the same names; None leaves one out.
        chunked: Whether the body is sent as a chunk, whose end is known, instead of with a length.
        cut: The number of bytes after which the connection ends; None for all.
        stall: Whether nothing more is sent then, until the server stops.
        gate: If not None, what has to be set before the rest is sent after the cut.
    """

    body: bytes = b""
    status: int = 200
    headers: dict[str, str | None] = field(default_factory=dict)
    chunked: bool = False
    cut: int | None = None
    stall: bool = False
    gate: threading.Event | None = None

    def all_headers(self) -> dict[str, str | None]:
        usual: dict[str, str | None] = {"Content-Type": "application/octet-stream"}
        usual |= {"Transfer-Encoding": "chunked"} if self.chunked else {"Content-Length": str(len(self.body))}
        return {**usual, **self.headers}

    def content(self) -> bytes:
        return b"%x\r\n%b\r\n0\r\n\r\n" % (len(self.body), self.body) if self.chunked else self.body


Answer = Callable[[str, str | None], Reply]


@dataclass
class FileServer:
    """A running server: its address, and the path and range of each request so far, and their headers."""

    address: str
    requests: list[tuple[str, str | None]]
    headers: list[dict[str, str]]


def ranges(body: bytes, *, etag: str | None = '"1"', cut: int | None = None) -> Answer:
    """Return answers of a server that has a file, and sends the rest of it where that is asked for."""

    def answer(path: str, asked: str | None) -> Reply:
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if start >= len(body):
            return Reply(status=416, headers={"ETag": etag, "Content-Range": f"bytes */{len(body)}"})
        whole = {"ETag": etag}
        if start:
            whole["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        return Reply(body[start:], 206 if start else 200, whole, cut=cut)

    return answer


@contextmanager
def file_server(answers: Answer | list[Answer], context: ssl.SSLContext | None = None) -> Iterator[FileServer]:
    """Run a server, over TLS with a context; of a list of answers each serves one request, the last all others."""
    seen = FileServer("", [], [])
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            seen.headers.append(dict(self.headers.items()))
            seen.requests.append((self.path, asked))
            number = min(len(seen.requests), len(answers)) - 1 if isinstance(answers, list) else 0
            reply = (answers[number] if isinstance(answers, list) else answers)(self.path, asked)
            self.send_response(reply.status)
            for name, value in reply.all_headers().items():
                if value is not None:
                    self.send_header(name, value)
            content = reply.content()
            cut = len(content) if reply.cut is None else reply.cut
            with suppress(OSError):  # a client that has seen enough hangs up
                self.end_headers()
                self.wfile.write(content[:cut])
                self.wfile.flush()
                if reply.gate is not None and reply.gate.wait(60):
                    self.wfile.write(content[cut:])
            if reply.stall:
                stopped.wait()
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with running_server(Handler, context) as seen.address:
        try:
            yield seen
        finally:
            stopped.set()
