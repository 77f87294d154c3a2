"""What glibc is told, seen from outside: in processes of their own, as it holds for all of one."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

GLIBC = sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "malloc_info")
pytestmark = pytest.mark.skipif(not GLIBC, reason="not glibc: nothing here shows what its allocator does")

THREADS = """
import ctypes, sys, threading
from boxwright.runtime import allocator
assert {call}
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
begun = threading.Barrier(8)
def work():
    begun.wait()  # all at once, so that each would be given a heap of its own
    for _ in range(100):
        libc.malloc(ctypes.c_size_t(1000))
    begun.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
[one.start() for one in threads]
[one.join() for one in threads]
libc.fopen.restype = ctypes.c_void_p
file = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, ctypes.c_void_p(file))
libc.fclose(ctypes.c_void_p(file))
"""
FREED = """
import ctypes, resource
from boxwright.runtime import allocator
{call}
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(1 << 24)))
    ctypes.memset(block, 1, 1 << 24)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def test_threads_share_two_heaps(tmp_path: Path) -> None:
    run(THREADS.format(call="True"), tmp_path / "own.xml")
    run(THREADS.format(call="allocator.share_arenas()"), tmp_path / "shared.xml")
    own, shared = ((tmp_path / name).read_text().count("<heap nr=") for name in ("own.xml", "shared.xml"))
    assert 1 <= shared <= 2 < own


def test_what_is_freed_is_kept() -> None:
    """16 MiB are 4096 pages, which are mapped anew each time unless they are kept."""
    assert int(run(FREED.format(call=""))) > 4000
    assert int(run(FREED.format(call="assert allocator.keep_freed_memory()"))) < 400
