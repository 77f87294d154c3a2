"""Why data workers do not start or have died; each message says what to do, and none names memory where it is not at fault."""

from __future__ import annotations

import errno
import multiprocessing
import os
from multiprocessing.process import BaseProcess
from typing import cast

import pytest

from boxwright.base import worker_pools
from boxwright.data.worker_errors import dead_worker_error, start_error


class Dead:
    """A worker that has ended."""

    pid, sentinel = 7, -1

    def __init__(self, exitcode: int) -> None:
        self.exitcode = exitcode

    def join(self, timeout: float) -> None: ...

    def is_alive(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (78, 'each data worker imports the script again, .* under `if __name__ == "__main__":`'),
        (1, r"a data worker died \(process 7\): it ended with status 1$"),
        (-9, r"killed by signal 9; was it out of memory\?$"),
        (-7, "shared memory, through which workers pass batches, is full"),
    ],
)
def test_the_status_of_a_dead_worker_says_why(status: int, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boxwright.data.worker_errors.wait", lambda sentinels, timeout: sentinels)
    with pytest.raises(Exception, match=wanted) as raised:
        raise dead_worker_error([cast(BaseProcess, Dead(status))], RuntimeError("lost"))
    assert ("memory" in str(raised.value)) is (status in (-9, -7))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSYS])
def test_shared_memory_that_cannot_be_used_names_the_way_without(number: int) -> None:
    error = start_error(OSError(number, "no"), "fork")
    assert "shared memory (/dev/shm), which data workers need, cannot be used here" in str(error)
    assert "--workers 0" in str(error)


def test_what_is_not_known_is_left_as_it_is() -> None:
    assert start_error(OSError(errno.EMFILE, "too many open files"), "fork") is None
    assert start_error(EOFError(), "spawn") is None


def test_a_server_of_workers_that_ended_is_a_missing_guard() -> None:
    assert 'under `if __name__ == "__main__":`' in str(start_error(EOFError(), "forkserver"))


def test_data_that_cannot_be_pickled_say_where_their_class_belongs() -> None:
    error = start_error(AttributeError("Can't pickle local object 'main.<locals>.Mine'"), "spawn")
    assert "main.<locals>.Mine'; define their classes and functions at the top of a module" in str(error)


def test_only_a_child_that_imports_the_script_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    worker_pools.exit_while_importing()
    assert statuses == []
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    worker_pools.exit_while_importing()
    assert statuses == [worker_pools.UNGUARDED]
