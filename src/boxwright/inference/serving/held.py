"""Limiting the memory of all requests together: bodies, pictures, and answers until the client has read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType

from fastapi import Response
from starlette.types import Receive, Scope, Send

from boxwright.inference.serving.batcher import Row
from boxwright.inference.serving.requests import BadRequest

# Bytes of a response written at once; the rest waits until the client has read them.
_PIECE = 256 * 2**10
# Per number: in an array, and at most in JSON.
_ARRAY_BYTES, _JSON_BYTES = 4, 13


class MemoryBudget:
    """The memory of all requests in progress."""

    def __init__(self, most_mib: float) -> None:
        """Start with nothing held, of at most `most_mib`."""
        self.most, self.bytes = int(most_mib * 2**20), 0


class MemoryReservation:
    """The memory that one request holds until it is answered."""

    def __init__(self, held: MemoryBudget) -> None:
        """Start with nothing held."""
        self._held, self._bytes, self._over = held, 0, False

    def add(self, count: int) -> None:
        """Hold `count` more bytes.

        Raises:
            BadRequest: If that exceeds the limit by itself or with all other requests, or this request is over.
        """
        if count > self._held.most:
            raise BadRequest(
                413, f"the request takes more than the {self._held.most / 2**20:g} MiB allowed for all requests"
            )
        if self._over or self._held.bytes + count > self._held.most:
            raise BadRequest(503, "too many requests are in progress; try again")
        self._bytes += count
        self._held.bytes += count

    def __enter__(self) -> MemoryReservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._held.bytes -= self._bytes
        self._over = True


def answer_bytes(rows: Sequence[Row], wanted: Collection[str]) -> int:
    """Return the most memory that an answer takes: all outputs as arrays, and the returned ones as text.

    Args:
        wanted: The requested outputs; empty for the default ones.
    """
    numbers = {name: value.size * len(rows) for name, value in rows[0].items()}
    written = [count for name, count in numbers.items() if (name in wanted if wanted else not name.startswith("raw_"))]
    return _ARRAY_BYTES * sum(numbers.values()) + _JSON_BYTES * sum(written)


class BudgetedResponse(Response):
    """A response whose memory counts as held until it is sent, so that clients who do not read it delay others."""

    def __init__(
        self, content: bytes, held: ExitStack, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Take the content, and `held`, which is closed once it is sent."""
        super().__init__(content, headers=headers, media_type=media_type)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response in pieces."""
        del scope, receive
        with self._held:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            body = memoryview(bytes(self.body))
            for start in range(0, max(len(body), 1), _PIECE):
                more = start + _PIECE < len(body)
                piece = bytes(body[start : start + _PIECE])
                await send({"type": "http.response.body", "body": piece, "more_body": more})
