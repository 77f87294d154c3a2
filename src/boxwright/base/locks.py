"""Locks on files, which the system releases when the process that holds them ends for any reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]


def lock(descriptor: int) -> str | None:
    """Lock an open file until it is closed; raise BlockingIOError if another process holds the lock.

    Returns:
        None if locked; else why it cannot be: the file system's reason, or "" if the system has no file locks.
    """
    if fcntl is None:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        return error.strerror or str(error)
    return None


@contextmanager
def closed_in_children(descriptor: int) -> Iterator[None]:
    """Close an open file at the end, and in every process forked until then, which would also hold its lock."""
    held = True

    def close() -> None:
        if held:
            os.close(descriptor)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=close)
    try:
        yield
    finally:
        held = False  # from here on the descriptor may be reused
        os.close(descriptor)
