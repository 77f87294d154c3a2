"""Where the server listens; connections that say nothing, say half, or do not listen; and how it ends."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import re
import resource
import signal
import socket
import struct
import threading
import time

import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI

from boxwright.base.errors import ConfigError
from boxwright.cli.serving import listening_socket
from boxwright.inference.serving.server import RateLimitFilter, Server, connection_limit
from boxwright.inference.serving.settings import ServerSettings
from tests.inference.serving.running import HEALTH, answer_of, post, served_by_command, serving, status
from tests.inference.serving.test_server import PICTURES, b64, png

QUICK = ServerSettings(timeout_s=2, idle_s=2, port=0)


@pytest.mark.slow
def test_connections_that_are_silent_or_say_half_are_closed() -> None:
    with serving(QUICK) as running:
        silent, head, body, drip = (running.connect() for _ in range(4))
        head.sendall(b"POST /detect HTTP/1.1\r\nHost: loc")
        body.sendall(b"POST /detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf")

        def send_slowly() -> None:
            try:
                drip.sendall(b"POST /detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
                for _ in range(1000):
                    drip.sendall(b"x")
                    time.sleep(0.1)
            except OSError:
                pass

        slowly = threading.Thread(target=send_slowly)
        slowly.start()
        # Each of these would wait for ever, and its own limit of 120 s would end it.
        assert answer_of(silent) == b""
        assert status(answer_of(head)) == 408
        for one in (body, drip):
            answer = answer_of(one)
            assert status(answer) == 408
            assert b"not complete within 2 s" in answer
            assert b"connection: close" in answer.lower()
        for one in (silent, head, body, drip):
            one.close()
        slowly.join(120)
        assert status(running.ask(HEALTH)) == 200
        kept = running.connect()
        kept.sendall(HEALTH.replace(b"Connection: close\r\n", b""))
        assert answer_of(kept).endswith(b"ok\n"), "a connection is kept, and closed once nothing more is asked"
        kept.close()


@pytest.mark.slow
def test_an_answer_that_is_not_read_is_given_up() -> None:
    body = json.dumps({"instances": [b64(PICTURES[0])] * 8, "output_filter": ["raw_detection_boxes"]}).encode()
    with serving(ServerSettings(timeout_s=60, idle_s=1)) as running:
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.settimeout(120)
        deaf.connect(running.address)
        deaf.sendall(post("/v1/models/detector:predict", body, close=False) * 30)
        while running.counters.summary().startswith("0 of") or running.server.server_state.connections:
            time.sleep(0.05)  # for ever, where such a connection is held
        deaf.close()


@pytest.mark.slow
def test_two_requests_in_one_piece_are_both_answered() -> None:
    with serving(ServerSettings()) as running:
        answer = running.ask(post("/detect", png(PICTURES[0]), close=False) + HEALTH)
    assert answer.count(b"HTTP/1.1 200") == 2


def test_a_body_that_is_refused_early_is_read_to_its_end_and_the_next_request_is_answered() -> None:
    with serving(ServerSettings(max_body_mib=0.01)) as running:
        answer = running.ask(post("/detect", b"x" * 3_000_000, close=False) + HEALTH)
    assert [int(part) for part in re.findall(rb"HTTP/1.1 (\d+)", answer)] == [413, 200]


def test_more_connections_than_there_is_room_for_take_the_place_of_idle_ones() -> None:
    with serving(ServerSettings(max_connections=5, idle_s=600)) as running:
        asking = running.connect()
        asking.sendall(b"POST /detect HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 4\r\n\r\nab")
        while running.counters.begun.collect()[0].samples[0].value < 1:
            time.sleep(0.01)
        idle = [running.connect() for _ in range(40)]
        assert status(running.ask(HEALTH)) == 200
        assert len(running.server.server_state.connections) <= 5
        assert answer_of(idle[0]) == b"", "the first of them was closed"
        asking.sendall(b"cd")
        assert status(answer_of(asking)) == 400, "a request in progress is answered"
        for one in (asking, *idle):
            one.close()


def test_no_upgrade_fills_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    upgrade = HEALTH.replace(b"Connection: close", b"Connection: close, Upgrade\r\nUpgrade: websocket")
    with serving(ServerSettings()) as running:
        for _ in range(4):
            assert status(running.ask(upgrade)) == 200
            assert status(running.ask(b"\0\r\n\r\n")) == 400
    said = [record.getMessage() for record in caplog.records if record.name.startswith(("uvicorn", "boxwright"))]
    assert len(said) <= 1, said


def test_a_message_is_said_once_a_minute() -> None:
    once = RateLimitFilter(3600)
    records = [
        logging.LogRecord("x", 30, "", 0, text, (number,), None) for text in ("%d a", "%d b") for number in (1, 2)
    ]
    assert [once.filter(record) for record in records] == [True, False, True, False]


def test_connections_leave_descriptors_for_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 128))
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: raised.append(pair))
    monkeypatch.setattr("boxwright.inference.serving.server._open_files", lambda: 20)
    assert connection_limit(ServerSettings(max_connections=1000, decoders=2)) <= 128 - 20
    assert raised == [(128, 128)], "the soft limit becomes the hard one"
    assert connection_limit(ServerSettings(max_connections=10, decoders=2)) == 10
    monkeypatch.setattr("boxwright.inference.serving.server._open_files", lambda: 500)
    assert connection_limit(ServerSettings()) == 1


class Refusing:
    """Stands for a listening socket: a client gave up, then there is no descriptor left."""

    def __init__(self) -> None:
        self.errors: list[OSError] = [ConnectionAbortedError(), OSError(errno.EMFILE, "Too many open files")]

    def accept(self) -> None:
        raise self.errors.pop(0)


def test_without_a_descriptor_accepting_pauses(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(uvicorn.Config("none"), ServerSettings(), ended=lambda: None)
    listening = Refusing()
    with caplog.at_level(logging.WARNING, "boxwright"):
        assert server._accept_waiting(listening) > 0  # type: ignore[arg-type]
    assert not listening.errors
    assert caplog.messages == ["pausing to accept connections: Too many open files"]


@pytest.mark.slow
@pytest.mark.parametrize("flood", [120, pytest.param(600, marks=pytest.mark.slow)])
def test_idle_connections_and_few_descriptors(flood: int) -> None:
    """With 64 descriptors, a flood of connections: health is answered, the log is short, SIGTERM ends it."""
    few = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))}
    with served_by_command("--grace_s", "5", **few) as (process, address):
        idle = [socket.create_connection(address, timeout=120) for _ in range(flood)]
        for _ in range(3):
            with socket.create_connection(address, timeout=120) as asking:
                asking.sendall(post("/detect", png(PICTURES[0])))
                assert status(answer_of(asking)) == 200
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=120)
        for one in idle:
            one.close()
    assert len(said) < 3000, said[:5000]
    assert "Traceback" not in said


def test_a_client_that_goes_away_is_no_fault_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    with serving(ServerSettings()) as running:
        gone = running.connect()
        gone.sendall(b"POST /detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf")
        while running.counters.begun.collect()[0].samples[0].value < 1:
            time.sleep(0.01)
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        gone.close()
        while "0 of" in running.counters.summary():
            time.sleep(0.01)
        numbers = running.ask(HEALTH.replace(b"healthz", b"metrics")).decode()
    assert 'boxwright_requests_total{route="/detect",status="499"} 1.0' in numbers
    assert 'status="500"' not in numbers
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "lines",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        pytest.param("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", marks=pytest.mark.slow),
        "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
    ],
)
def test_a_body_of_two_lengths_is_refused_and_the_rest_is_no_request(lines: str) -> None:
    start = f"POST /detect HTTP/1.1\r\nHost: localhost\r\n{lines}".encode()
    with serving(ServerSettings()) as running:
        answer = running.ask(start + HEALTH)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert status(answer) == 400
    assert b"connection: close" in answer.lower()


def chunked(*chunks: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    head = b"POST /detect HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + body


@pytest.mark.slow_except("300000")
@pytest.mark.parametrize("size", [100, 5000, 300_000])
def test_a_body_in_chunks_is_read_whole_and_so_is_what_follows(size: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (400, 500, 3), np.uint8)
    data = png(noise)
    pieces = [data[place : place + size] for place in range(0, len(data), size)]
    with serving(ServerSettings(timeout_s=120)) as running:
        answer = running.ask(chunked(*pieces) + post("/detect", data, close=False) + HEALTH)
    assert answer.count(b"HTTP/1.1 200") == 3
    assert answer.count(b'"width":500') == 2


def test_a_million_chunks_of_a_byte_are_refused() -> None:
    """Each is an event of its own: 256 KiB of them kept everyone waiting for a second."""
    with serving(ServerSettings(timeout_s=120)) as running:
        answer = running.ask(chunked(*[b"x"] * 200_000))
        assert status(answer or b"HTTP/1.1 400 reset before it was read") == 400
        assert status(running.ask(HEALTH)) == 200


def test_answers_are_sent_at_once() -> None:
    """With Nagle's algorithm a small answer in two parts waits 40 ms for the client's acknowledgement."""

    async def option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listening_socket("127.0.0.1", 0) as listening:
            server = await asyncio.start_server(connected, sock=listening)
            _, writer = await asyncio.open_connection(*listening.getsockname()[:2])
            value = await found
            writer.close()
            server.close()
        return value

    assert asyncio.run(option()) == 1


def test_a_port_in_use_and_a_host_that_is_not_here() -> None:
    with listening_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            listening_socket("127.0.0.1", port)
    with pytest.raises(ConfigError, match="cannot listen on 192.0.2.1:0"):
        listening_socket("192.0.2.1", 0)


def test_what_an_open_connection_asks_after_the_end_began_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boxwright.inference.serving.server._LAST_REQUESTS_S", 120.0)
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
            time.sleep(0.01)  # or so many are open that idle ones are closed
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
