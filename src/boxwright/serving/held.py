"""How much memory requests hold together: their bodies, their pictures, and their answers until a client has them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType

from fastapi import Response
from starlette.types import Receive, Scope, Send

from boxwright.serving.batcher import Row
from boxwright.serving.requests import BadRequest

# Of an answer, what is handed to a connection at once; the rest waits until the client has read.
_PIECE = 256 * 2**10
# Of a number: four in its array, and at most so many in JSON.
_ARRAY_BYTES, _JSON_BYTES = 4, 13


class Held:
    """The memory of all requests in progress."""

    def __init__(self, most_mib: float) -> None:
        """Start with nothing held.

        Args:
            most_mib: What may be held at once.
        """
        self.most, self.bytes = int(most_mib * 2**20), 0


class Share:
    """What one request holds, until it is answered."""

    def __init__(self, held: Held) -> None:
        """Start with nothing.

        Args:
            held: What it is a part of.
        """
        self._held, self._bytes, self._over = held, 0, False

    def add(self, count: int) -> None:
        """Hold so many bytes more.

        Raises:
            BadRequest: Where it is more than may be held at all, all requests together would hold too much, or this
                one is over.
        """
        if count > self._held.most:
            raise BadRequest(413, f"what is asked takes more than the {self._held.most / 2**20:g} MiB of all requests")
        if self._over or self._held.bytes + count > self._held.most:
            raise BadRequest(503, "too much is being read and waits; try again")
        self._bytes += count
        self._held.bytes += count

    def __enter__(self) -> Share:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._held.bytes -= self._bytes
        self._over = True


def answer_bytes(rows: Sequence[Row], wanted: Collection[str]) -> int:
    """Return how much memory an answer takes at most: all outputs as arrays, those that are answered as text.

    Args:
        rows: What was found in each picture.
        wanted: The outputs; none for those that are given unasked.
    """
    numbers = {name: value.size * len(rows) for name, value in rows[0].items()}
    written = [count for name, count in numbers.items() if (name in wanted if wanted else not name.startswith("raw_"))]
    return _ARRAY_BYTES * sum(numbers.values()) + _JSON_BYTES * sum(written)


class HeldResponse(Response):
    """An answer whose memory is held until it is sent: a client that does not read it lets others wait."""

    def __init__(
        self, content: bytes, held: ExitStack, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Take an answer.

        Args:
            held: Lets go of what it holds.
        """
        super().__init__(content, headers=headers, media_type=media_type)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, a piece at a time."""
        del scope, receive
        with self._held:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            body = memoryview(bytes(self.body))
            for start in range(0, max(len(body), 1), _PIECE):
                more = start + _PIECE < len(body)
                piece = bytes(body[start : start + _PIECE])
                await send({"type": "http.response.body", "body": piece, "more_body": more})
