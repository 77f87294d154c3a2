"""Reading a request's body within limits on its size and time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson

from boxwright.base.text import is_count
from boxwright.inference.serving.settings import ServerSettings

# The key in a request's state of the time of its first byte, on the clock of `time.monotonic`.
BEGAN = "began"
MOST_HEAD_BYTES = 16 * 1024
LONG_HEAD = f"the request head is larger than {MOST_HEAD_BYTES // 1024} KiB"


class BadRequest(Exception):  # noqa: N818  # an HTTP answer, not an error
    """A request that is answered with an error status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        """Take the status and the reason, a line without any path."""
        super().__init__(reason)
        self.status, self.reason = status, reason


async def read_body(
    stream: AsyncIterator[bytes],
    announced: str,
    settings: ServerSettings,
    deadline: float,
    hold: Callable[[int], None],
) -> bytes:
    """Return a request's body.

    Args:
        announced: Its Content-Length; empty if it has none. One that is too large is refused before any of it is
            read: a client that sent `Expect: 100-continue` then sends none of it.
        deadline: When it must be complete, on the clock of `time.monotonic`.
        hold: Called with each part's size; may raise to refuse it.

    Raises:
        BadRequest: If it is too large or late.
    """
    most = int(settings.max_body_mib * 2**20)
    too_large = BadRequest(413, f"the request is larger than {settings.max_body_mib:g} MiB")
    if is_count(announced) and int(announced) > most:
        raise too_large
    parts, total = [], 0
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            async for part in stream:
                total += len(part)
                if total > most:
                    raise too_large
                hold(len(part))
                parts.append(part)
    except TimeoutError:
        raise BadRequest(408, f"the request was not complete within {settings.timeout_s:g} s") from None
    return b"".join(parts)


def parsed_json(body: bytes) -> dict[str, Any]:
    """Return a body's JSON object; BadRequest if it is not one."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(400, f"JSON Parse Error: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise BadRequest(400, "expected a JSON object")
    return content
