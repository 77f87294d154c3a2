"""Keep waiting OpenMP threads from spinning while other programs compute.

A thread that spins for some milliseconds while it waits wakes at once, which makes steps up to a tenth faster on an
idle machine. Beside other programs it spends its share of a CPU on spinning and then has none when there is work: steps
take two to three times as long (`benchmarks/threads.py`).

GNU's OpenMP, which PyTorch uses on Linux, reads its spin count once. But while a process has more OpenMP threads than
CPUs, waiting threads spin for 100 turns at most. A second team of threads, which does nothing, therefore switches
spinning off, and its end switches spinning on again. Other implementations of OpenMP are left alone.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path

from boxwright.base.threads import spinning_threads

# Of the time that threads were ready but had no CPU, over elapsed time: above 0.3 beside one busy program, else < 0.01.
_CONTENDED, _FREE = 0.1, 0.03
_EVERY_S = 0.5
# Programs that compute in bursts come back.
_FREE_LOOKS = 4
# On machines with more CPUs a team would need more threads than spinning is worth.
_MOST_CPUS = 64
_SELF = Path("/proc/self")
_watching: set[int] = set()


def spin_only_on_idle_cpus() -> bool:
    """Watch from now on whether other programs compete for CPUs, and let waiting threads spin only while none does.

    Does nothing where the user set how threads wait, on machines of more than 64 CPUs, without GNU's OpenMP, or where
    the system does not say how long threads waited for a CPU (Linux does).

    Returns:
        Whether this process watches.
    """
    process = os.getpid()  # a forked child has none of its parent's threads
    if process in _watching:
        return True
    libraries = loaded_openmp(_SELF) if spinning_threads() and waited_ns(_SELF) else []
    if not libraries or len(os.sched_getaffinity(0)) > _MOST_CPUS:
        return False
    _watching.add(process)
    threading.Thread(target=_watch, args=(Spinning(libraries),), name="spinning", daemon=True).start()
    return True


class Contention:
    """Whether other programs compete for CPUs."""

    def __init__(self) -> None:
        """Begin without any."""
        self._now, self._free_looks = False, 0

    def update(self, share: float) -> bool:
        """Return whether others compete now.

        Args:
            share: Of the time since the last call, how much this process's threads waited for a CPU; of several threads
                the sum.
        """
        self._free_looks = self._free_looks + 1 if share < _FREE else 0
        self._now = self._free_looks < _FREE_LOOKS if self._now else share > _CONTENDED
        return self._now


class Spinning:
    """The switch of GNU's OpenMP: whether waiting threads of this process spin as long as its spin count says."""

    def __init__(self, libraries: list[str]) -> None:
        """Begin with threads that spin.

        Args:
            libraries: The paths from which this process has loaded GNU's OpenMP.
        """
        self._libraries = [ctypes.CDLL(library) for library in libraries]
        self._team_ends: threading.Event | None = None
        self._teams: list[threading.Thread] = []

    def allow(self, *, allowed: bool) -> None:
        """Switch spinning on or off."""
        if allowed and self._team_ends is not None:
            self._team_ends.set()
            for team in self._teams:
                team.join()
            self._team_ends = None
        elif not allowed and self._team_ends is None:
            self._team_ends = threading.Event()
            self._teams = [_idle_team(library, self._team_ends) for library in self._libraries]


def _idle_team(library: ctypes.CDLL, ends: threading.Event) -> threading.Thread:
    """Return the thread that has started a team of more threads than there are CPUs; OpenMP ends the team with it."""
    started = threading.Event()

    def hold() -> None:
        # All of the team call free(NULL), which does nothing; a Python function would make them wait for its lock.
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        count = len(os.sched_getaffinity(0)) + 1
        library.GOMP_parallel(nothing, None, ctypes.c_uint(count), ctypes.c_uint(0))
        started.set()
        ends.wait()

    team = threading.Thread(target=hold, name="idle OpenMP team", daemon=True)
    team.start()
    started.wait()
    return team


def _watch(spinning: Spinning) -> None:
    contention = Contention()
    before, since = waited_ns(_SELF), time.monotonic_ns()
    while True:
        time.sleep(_EVERY_S)
        now, until = waited_ns(_SELF), time.monotonic_ns()
        waited = sum(max(ns - before.get(thread, 0), 0) for thread, ns in now.items())
        spinning.allow(allowed=not contention.update(waited / (until - since)))
        before, since = now, until


def waited_ns(process: Path) -> dict[str, int]:
    """Return how long each thread has been ready to run without a CPU, by its number.

    Args:
        process: The folder in which the system describes a process.

    Returns:
        Nanoseconds; {} where the system does not say.
    """
    waited = {}
    try:
        threads = os.listdir(process / "task")
    except OSError:
        return {}
    for thread in threads:
        try:
            # Time on a CPU, time waiting for one, and how often it ran.
            fields = (process / "task" / thread / "schedstat").read_text().split()
        except OSError:  # it has ended
            continue
        if len(fields) == 3 and fields[1].isdecimal():
            waited[thread] = int(fields[1])
    return waited


def loaded_openmp(process: Path) -> list[str]:
    """Return the paths from which a process has loaded GNU's OpenMP."""
    try:
        lines = (process / "maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in lines if "/" in line}
    return sorted(path for path in paths if os.path.basename(path).startswith("libgomp"))
