"""The server's end: what was sent before it is still answered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

__all__ = ["Server"]

# Seconds for the request of a connection that was opened just before the end.
_LAST_REQUESTS_S = 0.5


class Server(uvicorn.Server):
    """uvicorn's, which when told to end closes connections whose request it has not read yet; this one reads them."""

    def __init__(self, config: uvicorn.Config, ended: Callable[[], None]) -> None:
        """Make a server that calls `ended` when all is answered; the signal that ended it is raised after that."""
        super().__init__(config)
        self._ended = ended

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more, take the requests of connections there are, then end as uvicorn does."""
        await asyncio.sleep(0)  # connections that wait in the kernel are accepted first
        for server in self.servers:
            server.close()
        for one in sockets or []:
            one.close()
        deadline = asyncio.get_running_loop().time() + _LAST_REQUESTS_S
        while self.server_state.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)
        self._ended()
