"""How many threads compute, how they wait for each other, and work that several do, whose results keep its order.

How they wait is set for our own commands, before PyTorch is imported.

OpenMP's threads spin while they wait for each other, by default for so long that beside other programs, or in a
container with less than one core per thread, each displaces the one that it waits for: a step then takes ten times as
long. Threads that sleep after a thousand turns lose nothing on a quiet machine (`benchmarks/threads.py`).
"""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TypeVar

from boxwright.base.errors import BoxwrightError
from boxwright.base.text import is_count

T = TypeVar("T")
R = TypeVar("R")
# A user who sets one of these has chosen how threads wait.
_WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
# GNU's OpenMP, which PyTorch uses on Linux, counts turns of some 50 ns; LLVM's and Intel's count milliseconds. Each
# ignores the other's variable.
_WAITS = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
MOST_THREADS = 1024  # far beyond, the system starts no more
_COUNT = "OMP_NUM_THREADS"


def prepare_threads(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set how OpenMP's threads wait, and how many there are if a container has fewer CPUs than are visible.

    Processes that this one starts inherit both. The user's own settings stay. Nothing changes if PyTorch is already
    imported, as it would not read them.
    """
    if "torch" in sys.modules:
        return
    if not any(environment.get(name) for name in _WAIT_VARIABLES):
        environment.update(_WAITS)
    # OpenMP follows the process's affinity by itself, but not its quota.
    if not environment.get(_COUNT) and usable_cpus() < _visible_cpus():
        environment[_COUNT] = str(usable_cpus())


def runtime_threads() -> int:
    """Return how many threads a runtime other than PyTorch should use; 0 for its own default.

    Those runtimes read neither OMP_NUM_THREADS nor a container's quota.
    """
    text = os.environ.get(_COUNT, "").split(",")[0].strip()
    if is_count(text) and int(text) > 0:
        return int(text)
    usable = usable_cpus()
    return usable if usable < (os.cpu_count() or 1) else 0


def threads_of_worker(workers: int) -> int:
    """Return how many threads each of some workers of this machine gets; 0, its runtime's choice, for one alone."""
    return max((os.cpu_count() or 1) // workers, 1) if workers > 1 else 0


def refuse_in_fork(process: int, threads: int, what: str) -> None:
    """Raise a BoxwrightError in a fork of a process whose threads are needed: the fork would wait for them forever.

    Args:
        process: The id of the process in which the threads were started.
        threads: How many compute; 0 for as many as the runtime likes. A single one is the caller's own.
        what: What was done in that process, for the message.
    """
    if os.getpid() == process or threads == 1:
        return
    raise BoxwrightError(
        f"{what} in process {process}; this is its fork {os.getpid()}, which has none of the threads that compute, so "
        "that a call would never return. Load the model in the child process itself, or start children by "
        'multiprocessing.get_context("spawn")'
    )


def usable_cpus() -> int:
    """Return how many CPUs this process may use at once, by its affinity and container quota; at least 1."""
    return min(_visible_cpus(), cpu_quota() or _visible_cpus())


def cpu_quota(root: Path = Path("/")) -> int | None:
    """Return how many CPUs' time the control groups of this process grant, rounded up.

    The smallest quota of all its groups, at least 1; None if none limits it. `root` is where `proc` and `sys` are.
    """
    shares = [*_quotas(root)]
    return max(math.ceil(min(shares)), 1) if shares else None


def _visible_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Yield the CPUs of each limited group of the process, for both versions of control groups."""
    groups = root / "sys" / "fs" / "cgroup"
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            for folder in _upwards(groups, path):
                quota, _, period = _text(folder / "cpu.max").partition(" ")
                yield from _share(quota, period)
        elif "cpu" in controllers.split(","):
            mounts = (groups / controllers, groups / "cpu")
            mount = next((folder for folder in mounts if folder.is_dir()), groups)
            for folder in _upwards(mount, path):
                yield from _share(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _upwards(mount: Path, path: str) -> list[Path]:
    """Return the folders of a group and its parents; a container sees only its own group, as the root."""
    inside = PurePosixPath(path.lstrip("/"))
    return [mount / folder for folder in (inside, *inside.parents) if ".." not in folder.parts]


def _share(quota: str, period: str) -> Iterator[float]:
    """Yield CPUs as quota over period, if there is a limit ("max" and -1 mean none)."""
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # missing or unreadable: no known limit
        return ""


def map_in_order(work: Callable[[T], R], items: Iterable[T], threads: int, ahead: int = 0) -> Iterator[R]:
    """Yield the results of several threads in the items' order; an error comes after the results of earlier items.

    Args:
        work: Called with an item, in any thread.
        threads: How many items are in progress at a time.
        ahead: How many more are taken before the first result is.
    """
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(threads, "worker")
    try:
        given = iter(items)
        while True:
            try:
                waiting.append(pool.submit(work, next(given)))
            except StopIteration:
                break
            except BaseException:
                while waiting:
                    yield waiting.popleft().result()
                raise
            if len(waiting) >= threads + ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
