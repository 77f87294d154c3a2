"""Short time slices: in a process of its own, whose threads' attributes are read from the system's bytes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from boxwright.base import time_slices
from boxwright.base.time_slices import shorten_time_slices

# struct sched_attr: size, policy, flags, nice, priority, the slice, and two numbers for other policies.
READ = """
import ctypes, os, platform, struct

FIELDS = "IIQiIQQQ"
CHANGE, READ, GETPID = {"x86_64": (314, 315, 39), "aarch64": (274, 275, 172)}[platform.machine()]
kernel = ctypes.CDLL(None)

def read(thread=0):
    buffer = ctypes.create_string_buffer(48)
    if kernel.syscall(READ, thread, buffer, 48, 0):
        raise OSError("sched_getattr")
    size, policy, flags, nice, priority, slice_ns, *_ = struct.unpack(FIELDS, buffer.raw[:48])
    return policy, nice, slice_ns
"""
# Slices are inherited, and other tests shorten them.
USUAL = """
if kernel.syscall(CHANGE, 0, struct.pack(FIELDS, 48, os.SCHED_OTHER, 0, 3, 0, 0, 0, 0), 0):
    raise OSError("sched_setattr")
"""
SHORTENED = """
import threading
from boxwright.base.time_slices import shorten_time_slices

goes_on = threading.Event()
def wait():
    numbers.append(threading.get_native_id())
    started.release()
    goes_on.wait()

numbers, started = [], threading.Semaphore(0)
def thread():
    threading.Thread(target=wait, daemon=True).start()
    started.acquire()

thread()
print(*read(), read(numbers[0])[2])
agreed = shorten_time_slices()
thread()
print(int(agreed), *read(), read(numbers[0])[2], read(numbers[1])[2])
"""
# A call that changes nothing and succeeds.
OLDER = """
from boxwright.base import time_slices

time_slices._CALLS = {platform.machine(): (GETPID, READ)}
print(int(time_slices.shorten_time_slices()))
"""


def slices_are_known() -> bool:
    """Return whether this system says how long slices are (Linux from 6.12 on)."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return False
    said = subprocess.run(
        [sys.executable, "-c", READ + "print(read()[2])"], capture_output=True, timeout=60, check=False
    )
    return said.stdout.strip() not in (b"", b"0")


NEEDS = pytest.mark.skipif(not slices_are_known(), reason="needs Linux 6.12")


def numbers(code: str) -> list[list[int]]:
    """Return the numbers that a program of its own prints, by line."""
    command = [sys.executable, "-c", READ + USUAL + code]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    return [[int(word) for word in line.split()] for line in lines]


@NEEDS
def test_all_threads_have_short_slices_and_keep_their_priority() -> None:
    (policy, nice, usual, other), (agreed, *after) = numbers(SHORTENED)
    assert usual == other > 100_000
    assert (policy, nice) == (os.SCHED_OTHER, 3)
    assert agreed
    assert after == [policy, nice, 100_000, 100_000, 100_000]


@NEEDS
def test_an_older_system_that_accepts_slices_and_keeps_its_own_is_told_apart() -> None:
    assert numbers(OLDER) == [[0]]


def test_systems_without_the_calls_keep_their_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "_CALLS", {platform.machine(): (100_000, 100_001)})
    assert not shorten_time_slices(), "a system that knows no such calls"
    monkeypatch.setattr(time_slices, "_CALLS", {})
    assert not shorten_time_slices(), "another processor"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not shorten_time_slices()
