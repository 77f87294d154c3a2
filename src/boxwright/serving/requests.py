"""What a request may hold and how long it may take: its body, counted and timed while it arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson

from boxwright.serving.settings import ServerSettings

# Where a request's state says when its first byte came, on the clock of `time.monotonic`.
BEGAN = "began"


class BadRequest(Exception):  # noqa: N818  # an answer, with its status
    """A request that is answered with a status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        """Say why.

        Args:
            reason: A line; it never holds a path.
        """
        super().__init__(reason)
        self.status, self.reason = status, reason


async def read_body(
    stream: AsyncIterator[bytes], settings: ServerSettings, deadline: float, hold: Callable[[int], None]
) -> bytes:
    """Return a request's body, counted and timed while it arrives.

    Args:
        deadline: When it must be there, on the clock of `time.monotonic`.
        hold: Called with the bytes of each part; may raise to refuse it.

    Raises:
        BadRequest: Where it is larger than the limit, or not there in time.
    """
    most = int(settings.max_body_mib * 2**20)
    parts, total = [], 0
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            async for part in stream:
                total += len(part)
                if total > most:
                    raise BadRequest(413, f"the request is larger than {settings.max_body_mib:g} MiB")
                hold(len(part))
                parts.append(part)
    except TimeoutError:
        raise BadRequest(408, f"the request was not whole within {settings.timeout_s:g} s") from None
    return b"".join(parts)


def parsed_json(body: bytes) -> dict[str, Any]:
    """Return a body's JSON object.

    Args:
        body: The bytes.

    Raises:
        BadRequest: Where it is none.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(400, f"JSON Parse Error: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise BadRequest(400, "expected a JSON object")
    return content
