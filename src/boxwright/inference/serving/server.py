"""Accepting connections up to a limit, and shutting down only after received requests are answered.

There are time limits on a request's head, on its body, and on the client reading the answer.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from boxwright.base.signals import end_signals
from boxwright.inference.serving.decoders import decoder_count
from boxwright.inference.serving.requests import BEGAN, LONG_HEAD, MOST_HEAD_BYTES
from boxwright.inference.serving.settings import ServerSettings


def _refusal(status: str, reason: str) -> bytes:
    body = json.dumps({"error": reason})
    head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"HTTP/1.1 {status}\r\n{head}\r\n\r\n{body}".encode()


_LATE_HEAD = _refusal("408 Request Timeout", "the request head was not received in time")
_MALFORMED = _refusal("400 Bad Request", "this is no HTTP request")
_LONG_HEAD = _refusal("431 Request Header Fields Too Large", LONG_HEAD)
_TINY_CHUNKS = _refusal("400 Bad Request", "the request has too many small chunks")
# Bytes of a chunked body parsed at once; a body of more than _MANY_LINES lines (two per chunk) that average fewer than
# _TINY bytes is refused.
_PIECE, _MANY_LINES, _TINY = 16 * 1024, 20_000, 16

# Connections without a request, the longest idle one first.
Idle = dict["Connection", None]


class Connection(H11Protocol):
    """uvicorn's protocol with a timer: idle, half-sent and unread connections are closed."""

    def __init__(
        self, settings: ServerSettings, idle: Idle, config: Config, server_state: ServerState, **more: Any
    ) -> None:
        """Create a connection's protocol.

        Args:
            idle: The connections without a request, where this one registers itself.
        """
        super().__init__(config=config, server_state=server_state, **more)
        self._settings, self._idle, self.app_state = settings, idle, dict(self.app_state)
        self._clock: asyncio.TimerHandle | None = None
        self._unsent, self._lines, self._bytes = 0, 0, 0
        self._pieces = deque[bytes]()
        # Whether a request is being answered; whether part of its head has arrived; whether the rest of a request that
        # was answered early is being discarded.
        self._asks, self._begun, self._drains = False, False, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request."""
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up."""
        self._stop_clock()
        self._idle.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process bytes; a request's timer starts with its first."""
        if self._pieces:
            self._pieces.append(data)
            self.transport.pause_reading()
            return
        self._feed(data[:_PIECE])
        if len(data) <= _PIECE or self.transport.is_closing():
            return
        if self._has_length():
            self._feed(data[_PIECE:])
            return
        # The data may have thousands of chunks, parsed one by one: others are served in between.
        self._pieces.append(data[_PIECE:])
        self.transport.pause_reading()
        self.loop.call_soon(self._feed_piece)

    def _feed_piece(self) -> None:
        if self.transport.is_closing():
            self._pieces.clear()
            return
        data = self._pieces.popleft()
        if len(data) > _PIECE:
            self._pieces.appendleft(data[_PIECE:])
        self._feed(data[:_PIECE])
        if self._pieces:
            self.loop.call_soon(self._feed_piece)
        elif not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        if not self._asks and not self._begun:
            self._begin()
        super().data_received(data)
        if self.conn.their_state is h11.SEND_BODY and not self._has_length():
            self._lines, self._bytes = self._lines + data.count(b"\r\n"), self._bytes + len(data)
            if self._lines > _MANY_LINES and self._bytes < _TINY * self._lines and not self.transport.is_closing():
                if not self.cycle.response_started:
                    self.transport.write(_TINY_CHUNKS)
                self.transport.close()

    def _has_length(self) -> bool:
        """Return whether a body of known length is being read."""
        chunked = any(name == b"transfer-encoding" for name, _ in self.headers or ())
        return self.conn.their_state is h11.SEND_BODY and not chunked

    def handle_events(self) -> None:
        """Process received data; once a request's head is complete, the application enforces its time limit."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._asks = True
            self._idle.pop(self, None)
            # The application answers within its time limit; after that, the client is not reading.
            self._set_clock(self._settings.timeout_s + self._settings.idle_s, self._close_unread)
        elif self._drains and self.conn.their_state is h11.IDLE:
            self._await_request()

    def on_response_complete(self) -> None:
        """Wait for the next request, part of which may already have arrived."""
        self._await_request()
        self._drains = self.conn.their_state is h11.SEND_BODY
        if self.conn.trailing_data[0]:
            self._begin()
        super().on_response_complete()

    def close_after_answer(self) -> None:
        """Tell the client, with the answer to the request in progress, that this connection is closed after it."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.default_headers = self.server_state.default_headers

    def shutdown(self) -> None:
        """Close once the current request is answered, also one of which only a part has arrived."""
        # Its answer closes the connection, or its timer does if the rest never comes.
        if self._begun and not self._asks and not self._drains:
            return
        try:
            super().shutdown()
        except h11.LocalProtocolError:  # the connection is already broken
            self.transport.close()

    def close_idle(self) -> None:
        """Close at once, to make room; no request is in progress."""
        self._idle.pop(self, None)
        self.connections.discard(self)
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read as a request, and close."""
        del msg  # uvicorn's own words, in plain text
        if self.cycle is None or self.cycle.response_complete:
            is_long = len(self.conn.trailing_data[0]) > MOST_HEAD_BYTES
            self.transport.write(_LONG_HEAD if is_long else _MALFORMED)
        self.transport.close()

    def _should_upgrade(self) -> bool:
        """Return False: only HTTP is supported, and uvicorn would log two lines for every such request."""
        return False

    def _await_request(self) -> None:
        self._asks, self._begun, self._drains, self._unsent = False, False, False, 0
        self._idle.pop(self, None)
        self._idle[self] = None
        self._set_clock(self._settings.idle_s, self._close_silent)

    def _begin(self) -> None:
        """Start a request's timer."""
        self._begun, self._lines, self._bytes = True, 0, 0
        self.app_state[BEGAN] = time.monotonic()
        self._set_clock(min(self._settings.timeout_s, self._settings.idle_s), self._close_silent)

    def _set_clock(self, seconds: float, ring: Callable[[], None]) -> None:
        self._stop_clock()
        self._clock = self.loop.call_later(seconds, ring)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _close_silent(self) -> None:
        if self._begun and not self._drains and not self.transport.is_closing():
            self.transport.write(_LATE_HEAD)
            self._begun = False
        self._close_unread()

    def _close_unread(self) -> None:
        """Close once the written data has been read; at once if the client reads none of it."""
        unsent = self.transport.get_write_buffer_size()
        if unsent and (self._unsent == 0 or unsent < self._unsent):
            self._unsent = unsent
            self._set_clock(self._settings.idle_s, self._close_unread)
            # close() still sends what is buffered, which abort() drops.
            self.transport.close()
        elif unsent or self._asks:
            self.transport.abort()
        else:
            self.transport.close()


class RateLimitFilter(logging.Filter):
    """Passes each message once per minute, so that clients cannot fill the disk with log lines."""

    def __init__(self, seconds: float = 60.0) -> None:
        """Remember each passed message for `seconds`."""
        super().__init__()
        self._seconds, self._said = seconds, dict[str, float]()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a message, compared without its arguments, was not logged within the last minute."""
        now, message = time.monotonic(), str(record.msg)[:200]
        if now - self._said.get(message, -self._seconds) < self._seconds:
            return False
        if len(self._said) > 100:
            self._said.clear()
        self._said[message] = now
        return True


_LOG = logging.getLogger("boxwright.inference.serving.server")
for _logger in (_LOG, logging.getLogger("uvicorn.error")):
    _logger.addFilter(RateLimitFilter())
# Seconds for the request of a connection that was opened just before shutdown.
_LAST_REQUESTS_S = 0.5
# Seconds before accepting again after there was no room, or no descriptor.
_PAUSE_S, _ERROR_PAUSE_S = 0.05, 0.5
_HANDSHAKE_S, _QUICK_HANDSHAKE_S = 10.0, 1.0
_ACCEPTED_AT_ONCE, _MORE = 100, -1.0
# Descriptors for temporarily opened files, and for replacing a process.
_SPARE, _A_DECODER = 24, 2


def connection_limit(settings: ServerSettings) -> int:
    """Return how many connections are allowed, after raising this process's limit on open files as far as possible.

    The configured number, or fewer if the other files leave fewer descriptors; at least 1.
    """
    try:
        import resource
    except ImportError:
        return settings.max_connections
    needed = _open_files() + _SPARE + _A_DECODER * decoder_count(settings)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + needed
    if 0 <= soft < wanted:
        soft = wanted if hard < 0 else max(soft, min(wanted, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return settings.max_connections if soft < 0 else max(min(settings.max_connections, soft - needed), 1)


def _open_files() -> int:
    folder = Path("/proc/self/fd") if Path("/proc/self/fd").is_dir() else Path("/dev/fd")
    return len(os.listdir(folder))


class Server(uvicorn.Server):
    """uvicorn's server, with a limit on connections, and a shutdown that still reads the requests that were sent."""

    def __init__(self, config: uvicorn.Config, settings: ServerSettings, ended: Callable[[], None]) -> None:
        """Create a server.

        Args:
            ended: Called when everything is answered; the signal that ended the server is re-raised after that.
        """
        super().__init__(config)
        self._settings, self._ended = settings, ended
        self._most = connection_limit(settings)
        self._listening: list[socket.socket] = []
        self._idle: Idle = {}
        # Connections without a protocol yet, and since when.
        self._new: dict[asyncio.Task[None], float] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept connections."""
        # uvicorn would accept connections by itself, without a limit.
        await super().startup(sockets=[])
        for listening_socket in sockets or []:
            listening_socket.listen(self.config.backlog)
            listening_socket.setblocking(False)
            self._listening.append(listening_socket)
            self._listen(listening_socket)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer what open connections still ask, then shut down as uvicorn does.

        Every answer says that its connection is closed: a client that was not told would lose its next request.
        """
        loop = asyncio.get_running_loop()
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.close_after_answer()
        listening, self._listening = self._listening, []
        for listening_socket in listening:
            loop.remove_reader(listening_socket.fileno())
            while self._accept_waiting(listening_socket) == _MORE:
                pass
            listening_socket.close()
        deadline = loop.time() + _LAST_REQUESTS_S
        while (self.server_state.connections or self._new) and loop.time() < deadline:
            await asyncio.sleep(0.01)
        for task in list(self._new):
            task.cancel()
        await super().shutdown(sockets)
        self._ended()

    def _listen(self, listening: socket.socket) -> None:
        if listening in self._listening:
            asyncio.get_running_loop().add_reader(listening.fileno(), self._accept_some, listening)

    def _accept_some(self, listening: socket.socket) -> None:
        """Accept pending connections; if there is no room, try again shortly."""
        if (pause := self._accept_waiting(listening)) not in (0, _MORE):
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening.fileno())
            loop.call_later(pause, self._listen, listening)

    def _accept_waiting(self, listening: socket.socket) -> float:
        """Accept connections; return how many seconds to pause, 0 for none, `_MORE` if others may be pending."""
        for _ in range(_ACCEPTED_AT_ONCE):
            if not self._has_room():
                return _PAUSE_S
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return 0.0
            except ConnectionAbortedError:
                continue
            except OSError as error:
                _LOG.warning("pausing to accept connections: %s", error.strerror)
                self._close_one_idle()
                return _ERROR_PAUSE_S
            accepted.setblocking(False)
            task = asyncio.ensure_future(self._connect(accepted))
            self._new[task] = time.monotonic()
            task.add_done_callback(functools.partial(self._connected, accepted))
        return _MORE

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on the same signals as other commands."""
        with super().capture_signals():
            before = {}
            if threading.current_thread() is threading.main_thread():
                before = {number: signal.signal(number, self.handle_exit) for number in end_signals()}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    async def _connect(self, accepted: socket.socket) -> None:
        make: Callable[[], Any] = functools.partial(
            Connection, self._settings, self._idle, self.config, self.server_state, app_state=self.lifespan.state
        )
        more = {"ssl_handshake_timeout": min(_HANDSHAKE_S, self._settings.idle_s)} if self.config.ssl else {}
        await asyncio.get_running_loop().connect_accepted_socket(make, accepted, ssl=self.config.ssl, **more)

    def _connected(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._new.pop(task, None)
        if task.cancelled() or task.exception() is not None:
            accepted.close()
            if not task.cancelled() and not isinstance(error := task.exception(), OSError):
                _LOG.warning("a connection failed: %s", f"{type(error).__name__}: {error}")

    def _has_room(self) -> bool:
        """Return whether one more connection may be accepted; if not, an idle one is closed."""
        if len(self.server_state.connections) + len(self._new) < self._most:
            return True
        _LOG.warning("the limit of %d connections is reached: closing idle ones", self._most)
        return self._close_one_idle()

    def _close_one_idle(self) -> bool:
        """Close the longest idle connection, and return whether there was one."""
        slowest = next(iter(self._new), None)
        if slowest is not None and time.monotonic() - self._new[slowest] > _QUICK_HANDSHAKE_S:
            slowest.cancel()
            self._new.pop(slowest)
            return True
        oldest = next(iter(self._idle), None)
        if oldest is not None:
            oldest.close_idle()
        return oldest is not None
