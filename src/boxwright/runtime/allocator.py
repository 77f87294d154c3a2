"""Memory allocation on Linux, where glibc's habits cost time or memory."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8  # of malloc.h


def keep_freed_memory() -> bool:
    """Keep what is freed, and return whether the process's allocator took the hint; False where it is not glibc's.

    Each training step frees and asks for the same hundreds of megabytes. glibc returns large blocks to the
    system at once, and every page is then zeroed and mapped anew, which costs a CPU run a quarter to a
    third of its time (`benchmarks/allocator.py`).
    """
    return _tell_glibc(((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, 64 << 20)))


def share_arenas() -> bool:
    """Let all threads allocate from two places, and return as `keep_freed_memory`.

    glibc gives each of a server's threads a heap of its own, and what one frees no other can use: under load the
    process grows for as long as threads take turns (`benchmarks/serve_load.py`).
    """
    return _tell_glibc(((_ARENA_MAX, 2),))


def _tell_glibc(settings: tuple[tuple[int, int], ...]) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    taken: int = sum(mallopt(name, value) for name, value in settings)
    return taken == len(settings)
