"""Why data workers cannot be started, have died or are stuck, as errors that say what to do."""

from __future__ import annotations

import errno
import shutil
import signal
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pickle import PicklingError

from boxwright.base.errors import TrainingError, first_line
from boxwright.base.worker_pools import UNGUARDED, missing_guard

_DEATH_SECONDS = 20.0
_SHARED_MEMORY = "/dev/shm"  # on Linux
# What creating a semaphore ends with where shared memory is missing, read-only or another user's.
_NO_SEMAPHORES = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOSYS)


def unusable_shared_memory(error: OSError) -> TrainingError:
    """Return the error for shared memory in which no semaphore can be made."""
    return TrainingError(
        f"shared memory ({_SHARED_MEMORY}), which data workers need, cannot be used here ({first_line(error)}): make "
        "it writable, or read without workers: --workers 0, in Python workers=0"
    )


def no_shared_memory(problem: str) -> TrainingError:
    """Return the error for shared memory that is full, with how much of it is free."""
    room = ""
    with suppress(OSError):
        usage = shutil.disk_usage(_SHARED_MEMORY)
        room = f": {usage.free / 2**20:.0f} of {usage.total / 2**20:.0f} MiB of {_SHARED_MEMORY} are free"
    return TrainingError(
        f"shared memory, through which workers pass batches, is full{room}; enlarge it (docker run --shm-size=8g), "
        f"or use fewer workers, or none ({problem})"
    )


def start_error(error: Exception, method: str) -> TrainingError | None:
    """Return why workers could not be started by a method such as spawn; None where it is nothing known."""
    if isinstance(error, EOFError | ConnectionError) and method == "forkserver":
        # The server that forks workers imports the script before them, and has ended at what it started there.
        return TrainingError(missing_guard("the server that starts data workers"))
    if isinstance(error, OSError) and error.errno in _NO_SEMAPHORES:
        return unusable_shared_memory(error)
    if isinstance(error, PicklingError | AttributeError | TypeError) and "pickle" in str(error).lower():
        return TrainingError(
            f"the data cannot be sent to workers, which are not forked here ({method}): {first_line(error)}; define "
            "their classes and functions at the top of a module, or read without workers: --workers 0, in Python "
            "workers=0"
        )
    return None


def describe_death(workers: list[BaseProcess]) -> str:
    """Return how the first dead worker ended; "" if none is dead."""
    code = next((worker.exitcode for worker in workers if worker.exitcode), 0)
    return f"killed by signal {-code}" if code < 0 else f"it ended with status {code}" if code else ""


def stuck_workers_error(workers: list[BaseProcess], patience: float) -> TrainingError:
    """Return the error for workers of which none has sent a batch in `patience` seconds."""
    states = ", ".join(f"{worker.pid} {'waits' if worker.is_alive() else 'is dead'}" for worker in workers)
    return TrainingError(
        f"no batch in {patience:g} s: the data workers are stuck (processes {states}); is the disk or network that "
        "holds the data still available? data_timeout sets how long to wait"
    )


def dead_worker_error(workers: list[BaseProcess], error: Exception) -> TrainingError:
    """Return the error for a worker that has died, by its exit status and what its death raised here."""
    if workers:  # a socket may be closed long before its process has ended, on a busy machine
        ended = wait([worker.sentinel for worker in workers], _DEATH_SECONDS)
        for worker in workers:
            if worker.sentinel in ended:  # its files are closed; the system knows how it ended a moment later
                worker.join(_DEATH_SECONDS)
    how = describe_death(workers) or first_line(error)
    # ENOSPC: queues need shared memory too; SIGBUS: a page that was promised is not there when it is written.
    exit_codes = [worker.exitcode for worker in workers]
    killers = {number.name for number in signal.Signals if -number in exit_codes}
    if (isinstance(error, OSError) and error.errno == 28) or "SIGBUS" in killers:
        return no_shared_memory(how)
    if UNGUARDED in exit_codes:
        return TrainingError(missing_guard("each data worker"))
    dead = [str(worker.pid) for worker in workers if not worker.is_alive()]
    named = f" (process {', '.join(dead)})" if dead else ""
    # The kernel kills the largest process when memory is exhausted; a worker that ends by itself says why.
    why = "; was it out of memory?" if "SIGKILL" in killers else ""
    return TrainingError(f"a data worker died{named}: {how}{why}")
