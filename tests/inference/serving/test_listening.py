"""Where the server listens."""

from __future__ import annotations

import asyncio
import socket

import pytest

from boxwright.base.errors import ConfigError
from boxwright.cli.serving import listening_socket


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
