"""Calls that write and fail, or end the process, by their number: the first, the second, and so on to the last."""

from __future__ import annotations

import builtins
import errno
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# The calls by which files come to be: opened or made, flushed to the disk, renamed; and folders.
CALLS = [
    (os, "open"), (builtins, "open"), (Path, "open"), (os, "fsync"), (os, "ftruncate"), (Path, "replace"),
    (Path, "rename"), (Path, "mkdir"),
]  # fmt: skip
PROBLEM = "No space left on device"


def _writes(name: str, words: tuple[Any, ...], more: dict[str, Any]) -> bool:
    """Return whether a call writes: reading, and opening a folder to flush it, are not what fills a disk."""
    if name != "open":
        return True
    how = more.get("mode", more.get("flags", words[1] if len(words) > 1 else "r"))
    if isinstance(how, int):
        return bool(how & (os.O_CREAT | os.O_WRONLY | os.O_RDWR))
    return bool(set(how) & set("wxa+"))


def disk_is_full() -> None:
    raise OSError(errno.ENOSPC, PROBLEM, "a file")


def memory_is_short() -> None:
    raise MemoryError


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_killed_at(number: int, call: Callable[[], object]) -> bool:
    """Call something in a forked process that a signal ends at the write of a number; False if it came to its end."""

    def attempt() -> None:
        with failing(number, killed):
            call()

    child = multiprocessing.get_context("fork").Process(target=attempt)
    child.start()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


@contextmanager
def failing(number: int, end: Callable[[], None] = disk_is_full) -> Iterator[list[str]]:
    """Let the call of a number fail, from 1; yield the names of the calls so far.

    Args:
        end: What happens in place of the call.
    """
    made: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(*words: Any, **more: Any) -> Any:
            if _writes(name, words, more):
                made.append(name)
                if len(made) == number:
                    end()
            return call(*words, **more)

        return attempt

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in CALLS:
            patch.setattr(owner, name, counted(name, getattr(owner, name)))
        yield made
