"""A server on a real socket, in a thread of the test's process."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn

from boxwright.cli.serving import listening_socket
from boxwright.inference.serving.app import make_app
from boxwright.inference.serving.guard import Counters
from boxwright.inference.serving.model import ServedModel
from boxwright.inference.serving.server import Server
from boxwright.inference.serving.settings import ServerSettings
from tests.exporters.exported import exported_detector

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Running:
    """A server that listens."""

    def __init__(self, server: Server, app: Any, counters: Counters, address: tuple[str, int]) -> None:
        self.server, self.app, self.counters, self.address = server, app, counters, address

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=120)

    def ask(self, request: bytes) -> bytes:
        """Send bytes on a connection of their own, and return all that comes back."""
        with self.connect() as connection:
            connection.sendall(request)
            return answer_of(connection)


@contextlib.contextmanager
def serving(settings: ServerSettings, names: tuple[str, ...] = ("detector",), **more: Any) -> Iterator[Running]:
    counters = Counters()
    models = [ServedModel(exported_detector().file, name, settings, counters.observe) for name in names]
    app = make_app(models, settings, counters, **more)
    listening = listening_socket(settings.host, 0)
    address = listening.getsockname()[:2]
    config = uvicorn.Config(app, http="h11", ws="none", log_level="warning", timeout_graceful_shutdown=60)
    server = Server(config, settings, lambda: None)
    running = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    running.start()
    try:
        one = Running(server, app, counters, address)
        while not server.started:
            running.join(0.01)
            assert running.is_alive()
        yield one
    finally:
        server.should_exit = True
        running.join(120)
        assert not running.is_alive()


def answer_of(connection: socket.socket) -> bytes:
    """Return what comes until the other side closes."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            found += part
    return found


def post(path: str, body: bytes, *lines: str, close: bool = True) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join([*head, *(["Connection: close"] if close else []), "", ""]).encode() + body


def status(answer: bytes) -> int:
    return int(answer.split()[1])


@contextlib.contextmanager
def served_by_command(
    *words: str, program: tuple[str, str] = ("-m", "boxwright"), **more: Any
) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """`boxwright serve`, once it answers; killed at the end where it has not ended by then."""
    process = subprocess.Popen(
        [sys.executable, *program, "serve", str(exported_detector().file), "--port", "0", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "COLUMNS": "200"}, **more,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", first)
        assert found, first + process.stdout.read()
        address = ("127.0.0.1", int(found[1]))
        while True:
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=120) as connection:
                connection.sendall(HEALTH)
                if answer_of(connection):
                    break
            assert process.poll() is None
            time.sleep(0.05)
        yield process, address
    finally:
        process.kill()
        process.communicate()
