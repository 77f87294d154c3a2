"""The end of a server loses no request, counted at clients that keep their connections, and behind nginx; refusals."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response

from boxwright.cli.serving import listening_socket
from boxwright.inference.serving.guard import error_response
from boxwright.inference.serving.requests import BadRequest, read_body
from boxwright.inference.serving.server import Server
from boxwright.inference.serving.settings import ServerSettings
from tests.inference.serving.running import served_by_command

CLIENTS = 24


@contextlib.contextmanager
def running(port: int = 0) -> Iterator[tuple[Server, int]]:
    """Run a server with an application that answers each request with its body; ended at the latest at the end."""
    app = FastAPI()

    def hold(_: int) -> None:
        """Hold memory, of which there is enough."""

    @app.post("/")
    async def echo(request: Request) -> Response:
        length = request.headers.get("content-length", "")
        try:
            body = await read_body(request.stream(), length, ServerSettings(), time.monotonic() + 60, hold)
        except BadRequest as error:
            return error_response(error.status, error.reason)
        return Response(json.dumps(body.decode()))

    listening = listening_socket("127.0.0.1", port)
    listening.listen(512)
    server = Server(uvicorn.Config(app, log_level="critical"), ServerSettings(), lambda: None)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield server, listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive()


class Client(threading.Thread):
    """Asks on one connection until a server closes it, and counts what it gets."""

    def __init__(self, port: int, enough: threading.Event) -> None:
        super().__init__()
        self.port, self.enough = port, enough
        self.answered, self.lost, self.was_told = 0, list[str](), False

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.connect()
        while not self.was_told and not self.lost:
            try:
                connection.request("POST", "/", body=str(self.answered))
                answer = connection.getresponse()
                assert answer.read() == f'"{self.answered}"'.encode()
            except (http.client.HTTPException, OSError) as error:
                self.lost.append(repr(error))
                return
            self.answered += 1
            self.was_told = answer.will_close
            if self.answered == 10:
                self.enough.set()


def ask(port: int, request: bytes) -> bytes:
    """Return all that comes back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    ("request_", "answer", "reason"),
    [
        # None of the body is sent, as nobody says 100 Continue.
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 99999999999\r\n"
            b"Connection: close\r\n\r\n",
            b"HTTP/1.1 413 ",
            "the request is larger than 20 MiB",
        ),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000, b"HTTP/1.1 431 ", "the request head is larger than 16 KiB"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"HTTP/1.1 400 ", "this is no HTTP request"),
    ],
    ids=["body", "head", "malformed"],
)
def test_what_is_too_large_is_refused_at_once(request_: bytes, answer: bytes, reason: str) -> None:
    with running() as (_, port):
        found = ask(port, request_)
    assert found.startswith(answer), found
    assert json.loads(found.partition(b"\r\n\r\n")[2]) == {"error": reason}


def test_no_client_that_keeps_its_connection_loses_a_request() -> None:
    """Each is told with an answer that its connection is closed, instead of learning it from its next request."""
    enough = threading.Event()
    with running() as (server, port):
        clients = [Client(port, enough) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        assert enough.wait(120)
        server.should_exit = True
        for client in clients:
            client.join(120)
    assert [client.lost for client in clients] == [[]] * CLIENTS
    assert all(client.was_told and client.answered for client in clients)


def test_a_request_of_which_a_part_has_arrived_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also later than connections without a request are closed."""
    monkeypatch.setattr("boxwright.inference.serving.server._LAST_REQUESTS_S", 0.0)
    with running() as (server, port):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=120) as idle,
            socket.create_connection(("127.0.0.1", port), timeout=120) as begun,
        ):
            for connection in (idle, begun):
                connection.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n1")
                answer = b""
                while not answer.endswith(b'"1"'):
                    answer += connection.recv(4096)
            begun.sendall(b"POST / HTTP/1.1\r\nHost: a\r\n")
            while not any(connection._begun for connection in list(server.server_state.connections)):
                time.sleep(0.01)
            server.should_exit = True
            assert idle.recv(4096) == b""
            begun.sendall(b"Content-Length: 1\r\n\r\n2")
            answer = b"".join(iter(lambda: begun.recv(4096), b""))
        assert b"connection: close" in answer.lower()
        assert answer.endswith(b'"2"')


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_the_command_ends_with_the_signals_number(number: signal.Signals) -> None:
    with served_by_command() as (process, _):
        process.send_signal(number)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 128 + number, said
    assert "requests were answered" in said


NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream detectors {{ server 127.0.0.1:{first}; server 127.0.0.1:{second}; keepalive 16; }}
  server {{
    listen 127.0.0.1:{port}; keepalive_requests 100000;
    location / {{ proxy_pass http://detectors; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


@contextlib.contextmanager
def nginx(folder: Path, first: int, second: int) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    configuration = folder / "nginx.conf"
    configuration.write_text(NGINX.format(folder=folder, port=port, first=first, second=second))
    with subprocess.Popen(["nginx", "-c", str(configuration), "-e", str(folder / "error.log")]) as process:
        try:
            while True:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=120).close()
                    break
                assert process.poll() is None
                time.sleep(0.02)
            yield port
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_behind_nginx_a_restart_loses_nothing(tmp_path: Path) -> None:
    """Two servers, each restarted while clients ask: nginx keeps connections to both, and answers all with 200."""
    asked, lost, stop = [0] * CLIENTS, list[str](), threading.Event()

    def ask(number: int) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            while not stop.is_set():
                try:
                    connection.request("POST", "/", body="a")
                    answer = connection.getresponse()
                    if (answer.status, answer.read()) != (200, b'"a"'):
                        lost.append(str(answer.status))
                except (http.client.HTTPException, OSError) as error:
                    lost.append(repr(error))
                asked[number] += 1

    with running() as (_, first), contextlib.ExitStack() as restarted:
        _, second = restarted.enter_context(running())
        with nginx(tmp_path, first, second) as port:
            threads = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
            for thread in threads:
                thread.start()
            for _ in range(3):
                most = sum(asked) + 20 * CLIENTS
                while sum(asked) < most:
                    time.sleep(0.01)
                restarted.close()  # ends it as SIGTERM does
                restarted.enter_context(running(second))
            stop.set()
            for thread in threads:
                thread.join(120)
    assert lost == []
    assert min(asked) > 0
