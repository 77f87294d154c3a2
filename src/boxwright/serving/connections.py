"""Connections that may not be silent for ever: a request's head, its body and the reading of its answer have a time."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from boxwright.serving.requests import BEGAN
from boxwright.serving.settings import ServerSettings


def _refusal(status: str, reason: str) -> bytes:
    body = json.dumps({"error": reason})
    head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"HTTP/1.1 {status}\r\n{head}\r\n\r\n{body}".encode()


_LATE_HEAD = _refusal("408 Request Timeout", "the head of the request is too late")
_TINY_CHUNKS = _refusal("400 Bad Request", "the request comes in too many chunks of too few bytes")
# What is read at once of a body in chunks, and how many lines of how few bytes are too many: each chunk has two.
_PIECE, _MANY_LINES, _TINY = 16 * 1024, 20_000, 16

# Connections on which nothing is asked, the one that is so for longest first.
Idle = dict["Connection", None]


class Connection(H11Protocol):
    """uvicorn's, with a clock: it is closed where nothing is asked, half is sent, or the answer is not read."""

    def __init__(
        self, settings: ServerSettings, idle: Idle, config: Config, server_state: ServerState, **more: Any
    ) -> None:
        """Make a connection's protocol.

        Args:
            idle: Where it stands while nothing is asked on it.
            **more: What else it hands its protocols.
        """
        super().__init__(config=config, server_state=server_state, **more)
        self._settings, self._idle, self.app_state = settings, idle, dict(self.app_state)
        self._clock: asyncio.TimerHandle | None = None
        self._unsent, self._lines, self._bytes = 0, 0, 0
        self._pieces = deque[bytes]()
        # Whether a request is being answered; whether bytes of its head are here; whether the rest of one that was
        # answered before it was whole is read and dropped.
        self._asks, self._begun, self._drains = False, False, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; its first request is awaited."""
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop_clock()
        self._idle.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; with a request's first its time begins."""
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
        # What comes in chunks may be thousands of them, each read by itself: others are answered in between.
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
        """Tell whether a body is being read whose length is known."""
        chunked = any(name == b"transfer-encoding" for name, _ in self.headers or ())
        return self.conn.their_state is h11.SEND_BODY and not chunked

    def handle_events(self) -> None:
        """Read what has come; once a request's head is whole, the application watches the time."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._asks = True
            self._idle.pop(self, None)
            # The application answers in its time; beyond, it is a client that does not read.
            self._set_clock(self._settings.timeout_s + self._settings.idle_s, self._close_unread)
        elif self._drains and self.conn.their_state is h11.IDLE:
            self._await_request()

    def on_response_complete(self) -> None:
        """Await the next request, of which bytes may be here already."""
        self._await_request()
        self._drains = self.conn.their_state is h11.SEND_BODY
        if self.conn.trailing_data[0]:
            self._begin()
        super().on_response_complete()

    def shutdown(self) -> None:
        """End once what is asked is answered."""
        try:
            super().shutdown()
        except h11.LocalProtocolError:  # it is broken already
            self.transport.close()

    def close_idle(self) -> None:
        """Make room for another: end at once, as nothing is asked."""
        self._idle.pop(self, None)
        self.connections.discard(self)
        self.transport.abort()

    def _should_upgrade(self) -> bool:
        """Speak HTTP alone; uvicorn would write two lines to the log for whoever asks for something else."""
        return False

    def _await_request(self) -> None:
        self._asks, self._begun, self._drains, self._unsent = False, False, False, 0
        self._idle.pop(self, None)
        self._idle[self] = None
        self._set_clock(self._settings.idle_s, self._close_silent)

    def _begin(self) -> None:
        """Start the time of a request."""
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
        """Close once what was written is taken; at once, where the client takes none of it."""
        unsent = self.transport.get_write_buffer_size()
        if unsent and (self._unsent == 0 or unsent < self._unsent):
            self._unsent = unsent
            self._set_clock(self._settings.idle_s, self._close_unread)
            self.transport.close()
        elif unsent or self._asks:
            self.transport.abort()
        else:
            self.transport.close()


class OnceAMinute(logging.Filter):
    """Lets each message through once a minute: what strangers do must not fill the disk."""

    def __init__(self, seconds: float = 60.0) -> None:
        """Start with nothing said.

        Args:
            seconds: For how long a message is not said again.
        """
        super().__init__()
        self._seconds, self._said = seconds, dict[str, float]()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a message may be logged: the same one, whatever its values, was not within the last minute."""
        now, message = time.monotonic(), str(record.msg)[:200]
        if now - self._said.get(message, -self._seconds) < self._seconds:
            return False
        if len(self._said) > 100:
            self._said.clear()
        self._said[message] = now
        return True
