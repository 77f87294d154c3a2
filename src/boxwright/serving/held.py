"""How much memory requests hold together: their bodies while they are read, their pictures while they wait."""

from __future__ import annotations

from types import TracebackType

from boxwright.serving.requests import BadRequest

__all__ = ["Held", "Share"]


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

        Args:
            count: How many.

        Raises:
            BadRequest: Where all requests together would hold too much, or this one is over.
        """
        if self._over or self._held.bytes + count > self._held.most:
            raise BadRequest(503, "too much is being read and waits; try again")
        self._bytes += count
        self._held.bytes += count

    def __enter__(self) -> Share:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._held.bytes -= self._bytes
        self._over = True
