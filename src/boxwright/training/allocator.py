"""Memory allocation on Linux: keep what is freed.

Each step frees and asks for the same hundreds of megabytes. glibc returns large blocks to the
system at once, and every page is then zeroed and mapped anew, which costs a CPU run a quarter to a
third of its time (`benchmarks/allocator.py`).
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # of malloc.h


def keep_freed_memory() -> bool:
    """Return whether the process's allocator took the hint; False where it is not glibc's."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, 64 << 20))
    taken: int = sum(mallopt(name, value) for name, value in settings)
    return taken == len(settings)
