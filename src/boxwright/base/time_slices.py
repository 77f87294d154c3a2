"""Ask the system for short time slices, so that threads which wait for each other run again soon.

Where other programs compute, a thread that wakes displaces one of them if its own slice would end sooner. The threads
of a step wait for each other thousands of times: with slices of a tenth of a millisecond a step beside three busy
programs for each CPU takes 0.8 of the time (`benchmarks/threads.py`). Nobody's share of the CPU changes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

_SHORTEST_NS = 100_000  # Linux accepts no less
# The numbers of sched_setattr and sched_getattr, for which old C libraries have no functions.
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}


class _Attributes(ctypes.Structure):
    """Linux's `struct sched_attr` in its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def shorten_time_slices() -> bool:
    """Ask for the shortest slices for this process, and all that it starts from now on; keep its priority.

    Returns:
        Whether the system agreed. Linux does from version 6.12 on, older ones and other systems keep their slices.
    """
    numbers = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if numbers is None:
        return False
    try:
        threads = [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        return False
    system = ctypes.CDLL(None)
    shortened = [_shorten(system, thread, *numbers) for thread in threads]
    return all(shortened)


def _shorten(system: ctypes.CDLL, thread: int, change: int, read: int) -> bool:
    """Ask for the shortest slices for a thread, by the numbers of two system calls; return whether it has them."""
    attributes = _Attributes()
    size = ctypes.sizeof(attributes)
    # Fails where a container forbids it, and for a thread that has ended.
    if system.syscall(read, thread, ctypes.byref(attributes), size, 0) or attributes.policy != os.SCHED_OTHER:
        return False
    attributes.runtime = _SHORTEST_NS
    system.syscall(change, thread, ctypes.byref(attributes), 0)
    # An older kernel accepts it and says 0.
    system.syscall(read, thread, ctypes.byref(attributes), size, 0)
    return bool(attributes.runtime == _SHORTEST_NS)
