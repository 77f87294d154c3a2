from __future__ import annotations

import socket
import threading

import pytest
import uvicorn
from fastapi import FastAPI

from boxwright.cli.serving import listening_socket
from boxwright.inference.serving import server as ending
from boxwright.inference.serving.server import Server
from boxwright.inference.serving.settings import ServerSettings


def test_what_an_open_connection_asks_after_the_end_began_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_LAST_REQUESTS_S", 120.0)
    app = FastAPI()
    asked, ended = threading.Event(), threading.Event()

    @app.get("/")
    async def root() -> str:
        asked.set()
        return "here"

    listening = listening_socket("127.0.0.1", 0)
    address = listening.getsockname()
    listening.listen()
    server = Server(uvicorn.Config(app, log_level="critical"), ServerSettings(), ended.set)
    running = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    running.start()
    with (
        socket.create_connection(address, timeout=120) as first,
        socket.create_connection(address, timeout=120) as late,
    ):
        first.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert asked.wait(120)
        late.sendall(b"GET / HTTP/1.1\r\n")  # begun before the end
        server.should_exit = True
        while True:  # until it listens no more
            try:
                socket.create_connection(address, timeout=120).close()
            except OSError:
                break
        assert not ended.is_set()
        late.sendall(b"Host: here\r\nConnection: close\r\n\r\n")
        answer = b""
        while part := late.recv(4096):
            answer += part
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b'"here"')
    running.join(120)
    assert ended.is_set()
