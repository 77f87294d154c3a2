"""How many threads compute, and how they wait for each other: chosen before PyTorch is imported, which reads it once.

OpenMP's threads spin while they wait for each other. Where another program wants the core, or a container has less
than a core for each thread, one that spins keeps away the one that it waits for, and a step takes many times as long.
Threads that sleep at once lose half of the speed of a machine that nobody else uses (`benchmarks/threads.py`). So
they spin for as long as one wait of a network's takes, and no longer.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path, PurePosixPath

# Whoever sets one of these has chosen how threads wait.
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
# PyTorch has GNU's OpenMP on Linux, and LLVM's on other systems; each ignores what the other reads.
_SPINS = {"GOMP_SPINCOUNT": "5000", "KMP_BLOCKTIME": "1"}
_COUNT = "OMP_NUM_THREADS"


def prepare_threads(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set how OpenMP's threads wait, and how many there are where a container has fewer CPUs than it sees.

    What the user has set stays. Where PyTorch is imported already, nothing is changed: it would not be read.
    """
    if "torch" in sys.modules:
        return
    if not any(environment.get(name) for name in _WAITING):
        environment.update(_SPINS)
    if not environment.get(_COUNT) and usable_cpus() < _visible_cpus():
        environment[_COUNT] = str(usable_cpus())


def runtime_threads() -> int:
    """Return how many threads another runtime than PyTorch is to take; 0 where nothing speaks against its own choice.

    Those runtimes read neither OMP_NUM_THREADS nor what a container is given.
    """
    text = os.environ.get(_COUNT, "").split(",")[0].strip()
    if text.isdecimal() and int(text) > 0:
        return int(text)
    usable = usable_cpus()
    return usable if usable < (os.cpu_count() or 1) else 0


def usable_cpus() -> int:
    """Return how many CPUs this process may use at once, by its affinity and its containers' quota; at least 1."""
    return min(_visible_cpus(), cpu_quota() or _visible_cpus())


def cpu_quota(root: Path = Path("/")) -> int | None:
    """Return how many CPUs' time the control groups of this process give it, rounded up.

    Args:
        root: Where `proc` and `sys` are.

    Returns:
        The least of all groups that it is in, at least 1; None where none of them limits it, or there are none.
    """
    shares = [*_quotas(root)]
    return max(math.ceil(min(shares)), 1) if shares else None


def _visible_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Yield CPUs of each limited group that the process is in, of both versions of control groups."""
    groups = root / "sys" / "fs" / "cgroup"
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            for folder in _upwards(groups, path):
                quota, _, period = _text(folder / "cpu.max").partition(" ")
                yield from _share(quota, period)
        elif "cpu" in controllers.split(","):
            mount = next((one for one in (groups / controllers, groups / "cpu") if one.is_dir()), groups)
            for folder in _upwards(mount, path):
                yield from _share(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _upwards(mount: Path, path: str) -> list[Path]:
    """Return a group's folder and those above it; in a container, which sees its own group as the root, that alone."""
    inside = PurePosixPath(path.lstrip("/"))
    return [mount / one for one in (inside, *inside.parents) if ".." not in one.parts]


def _share(quota: str, period: str) -> Iterator[float]:
    """Yield CPUs by microseconds of each period, where that is a limit ("max" and -1 are none)."""
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # not there, or not ours to read: no limit is known
        return ""
