"""Memory allocator settings on Linux, where glibc's defaults cost time or memory."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8  # of malloc.h


def keep_freed_memory() -> bool:
    """Keep freed memory in the process; return whether the allocator accepted that (False if it is not glibc's).

    Each training step, and each detection of a large network, frees and allocates the same hundreds of megabytes.
    glibc returns large blocks to the system at once, and every page is then zeroed and mapped again: a quarter to a
    third of a CPU run's time, a seventh of Faster R-CNN's detection.
    """
    return _set_glibc_options(((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, 64 << 20)))


def share_arenas() -> bool:
    """Limit all threads to two arenas; return whether the allocator accepted that.

    glibc gives each of a server's threads its own heap, and memory freed by one is unusable by others: under load the
    process grows as long as threads alternate (`benchmarks/serve_load.py`).
    """
    return _set_glibc_options(((_ARENA_MAX, 2),))


def _set_glibc_options(settings: tuple[tuple[int, int], ...]) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    accepted: int = sum(mallopt(name, value) for name, value in settings)
    return accepted == len(settings)
