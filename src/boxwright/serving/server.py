"""The server's end: what was sent before it is still answered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

__all__ = ["Server"]

# Seconds for the request of a connection that was opened just before the end.
_LAST_REQUESTS_S = 0.5
# Turns of the loop in which a connection that was accepted gets its protocol; asyncio drops those that have none yet
# when the listener closes.
_TURNS = 10


class Server(uvicorn.Server):
    """uvicorn's, which when told to end closes connections whose request it has not read yet; this one reads them."""

    def __init__(self, config: uvicorn.Config, ended: Callable[[], None]) -> None:
        """Make a server that calls `ended` when all is answered; the signal that ended it is raised after that."""
        super().__init__(config)
        self._ended = ended

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more, take the requests of connections there are, then end as uvicorn does."""
        loop = asyncio.get_running_loop()
        for server in self.servers:
            for listening in server.sockets:
                loop.remove_reader(listening.fileno())
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        for one in sockets or []:
            one.close()
        deadline = loop.time() + _LAST_REQUESTS_S
        while self.server_state.connections and loop.time() < deadline:
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)
        self._ended()
