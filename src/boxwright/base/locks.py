"""Locks on files, which the system releases when the process that holds them ends, however it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import fcntl
except ImportError:  # no POSIX system
    fcntl = None  # type: ignore[assignment]


def lock(descriptor: int) -> str | None:
    """Take the lock of an open file, until the file is closed.

    Returns:
        None where this holds it now; else why there is none to hold: the file system's words, or nothing where the
        whole system has no such locks.
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
    """Close an open file at the end, and in every process that is forked until then, which would hold its lock, too."""
    held = True

    def close() -> None:
        if held:
            os.close(descriptor)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=close)
    try:
        yield
    finally:
        held = False  # the number may be another file's from now on
        os.close(descriptor)
