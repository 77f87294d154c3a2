"""Accepting connections up to a limit, and shutting down only after received requests are answered."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from boxwright.inference.serving.connections import Connection, Idle, RateLimitFilter
from boxwright.inference.serving.decoders import decoder_count
from boxwright.inference.serving.settings import ServerSettings

_LOG = logging.getLogger("boxwright.inference.serving.server")
for _logger in (_LOG, logging.getLogger("uvicorn.error")):
    _logger.addFilter(RateLimitFilter())
# Seconds for the request of a connection that was opened just before shutdown.
_LAST_REQUESTS_S = 0.5
# Seconds before accepting again after there was no room, or no descriptor.
_PAUSE_S, _ERROR_PAUSE_S = 0.05, 0.5
_HANDSHAKE_S, _QUICK_HANDSHAKE_S = 10.0, 1.0
_ACCEPTED_AT_ONCE = 100
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
        for one in sockets or []:
            one.listen(self.config.backlog)
            one.setblocking(False)
            self._listening.append(one)
            self._listen(one)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, read the requests of open connections, then shut down as uvicorn does."""
        loop = asyncio.get_running_loop()
        listening, self._listening = self._listening, []
        for one in listening:
            loop.remove_reader(one.fileno())
            self._accept_waiting(one)
            one.close()
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
        if (pause := self._accept_waiting(listening)) > 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening.fileno())
            loop.call_later(pause, self._listen, listening)

    def _accept_waiting(self, listening: socket.socket) -> float:
        """Accept pending connections, and return how many seconds to pause; 0 for none."""
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
        return 0.0

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
