"""How many threads compute, and how they wait for each other: set before PyTorch is imported, which reads it once.

OpenMP's threads spin while they wait for each other. If another program wants the core, or a container has less
than one core per thread, a spinning thread displaces the one that it waits for, and a step takes many times as long.
On an otherwise idle machine threads that sleep at once lose a tenth of the speed, as each wait then ends late
(`benchmarks/threads.py`). So they spin longer than nearly all waits of a step take, but sleep at once where other
programs compute when this one starts; if they begin later, `boxwright.base.spinning` notices.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path, PurePosixPath

# A user who sets one of these has chosen how threads wait.
_WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
# PyTorch uses GNU's OpenMP on Linux and LLVM's elsewhere; each ignores the other's variable.
# Milliseconds, in the former: a turn takes some 50 ns.
_SPINS = {"GOMP_SPINCOUNT": "100000", "KMP_BLOCKTIME": "1"}
# A quota is spent by spinning too, and all threads stop when it is used up.
_SPINS_WITH_QUOTA = {"GOMP_SPINCOUNT": "5000", "KMP_BLOCKTIME": "1"}
_SLEEPS = {"GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
# One look would take for busy what wakes for a moment.
_LOOKS, _BETWEEN_S = 5, 0.002
MOST_THREADS = 1024  # far beyond, the system starts no more
_COUNT = "OMP_NUM_THREADS"


def prepare_threads(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set how OpenMP's threads wait, and how many there are if a container has fewer CPUs than are visible.

    The user's own settings stay. Nothing changes if PyTorch is already imported, as it would not read them.
    """
    if "torch" in sys.modules:
        return
    if not any(environment.get(name) for name in _WAIT_VARIABLES):
        spins = _SPINS_WITH_QUOTA if usable_cpus() < _visible_cpus() else _SPINS
        environment.update(_SLEEPS if others_compute() else spins)
    if not environment.get(_COUNT) and usable_cpus() < _visible_cpus():
        environment[_COUNT] = str(usable_cpus())


def others_compute(root: Path = Path("/")) -> bool:
    """Return whether other programs compute on at least half of the machine's CPUs now; False where that is unknown.

    A quiet machine answers at once, a busy one in some milliseconds. `root` is where `proc` is.
    """
    cpus = os.cpu_count() or 1
    for look in range(_LOOKS):
        if look:
            time.sleep(_BETWEEN_S)
        if 2 * _others_running(root) < cpus:
            return False
    return True


def sleeping_threads(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether threads sleep at once when they wait, as `prepare_threads` chose beside other programs."""
    return all(environment.get(name) == value for name, value in _SLEEPS.items())


def spinning_threads(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether waiting threads spin by `prepare_threads` or OpenMP's default, not by the user's choice."""
    chosen = {name: value for name in _WAIT_VARIABLES if (value := environment.get(name))}
    return chosen in ({}, _SPINS, _SPINS_WITH_QUOTA)


def _others_running(root: Path) -> int:
    """Return how many threads run or wait for a CPU, of the whole machine and without the one that asks."""
    fields = _text(root / "proc" / "loadavg").split()  # three averages, running/all, the newest process
    running = fields[3].partition("/")[0] if len(fields) > 3 else ""
    return max(int(running) - 1, 0) if running.isdecimal() else 0


def runtime_threads() -> int:
    """Return how many threads a runtime other than PyTorch should use; 0 for its own default.

    Those runtimes read neither OMP_NUM_THREADS nor a container's quota.
    """
    text = os.environ.get(_COUNT, "").split(",")[0].strip()
    if text.isdecimal() and int(text) > 0:
        return int(text)
    usable = usable_cpus()
    return usable if usable < (os.cpu_count() or 1) else 0


def runtime_sleeps() -> bool:
    """Return whether a runtime's waiting threads should sleep at once: PyTorch's do, or other programs compute now."""
    return sleeping_threads() or others_compute()


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
            mount = next((one for one in (groups / controllers, groups / "cpu") if one.is_dir()), groups)
            for folder in _upwards(mount, path):
                yield from _share(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _upwards(mount: Path, path: str) -> list[Path]:
    """Return the folders of a group and its parents; a container sees only its own group, as the root."""
    inside = PurePosixPath(path.lstrip("/"))
    return [mount / one for one in (inside, *inside.parents) if ".." not in one.parts]


def _share(quota: str, period: str) -> Iterator[float]:
    """Yield CPUs as quota over period, if there is a limit ("max" and -1 mean none)."""
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # missing or unreadable: no known limit
        return ""
