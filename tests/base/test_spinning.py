"""Whether threads spin: by what the system is made to say, and by GNU's OpenMP in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401 – loads OpenMP

from boxwright.base import spinning
from boxwright.base.spinning import Contention, loaded_openmp, spin_only_on_idle_cpus, waited_ns


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_what_the_system_says_of_threads_is_read(tmp_path: Path) -> None:
    assert waited_ns(tmp_path) == {}
    files = {
        "task/7/schedstat": "100 20 3\n",
        "task/8/schedstat": "",
        "task/9/schedstat": "1 many 3\n",
        "task/10/x": "",
    }
    assert waited_ns(write(tmp_path, files)) == {"7": 20}


def test_libraries_of_openmp_are_found_once_each(tmp_path: Path) -> None:
    assert loaded_openmp(tmp_path) == []
    start = "7f00-7f01 r-xp 00000000 fe:01 99"
    lines = [
        f"{start}   /a folder/lib/libgomp.so.1",
        f"{start}   /a folder/lib/libgomp.so.1",
        f"{start}   /libgomp/libc.so.6",
        "7f00-7f01 rw-p 00000000 00:00 0",
        "7f00-7f01 rw-p 00000000 00:00 0   [heap]",
        f"{start}   /b/libgomp-a34b3233.so.1.0.0",
    ]
    assert loaded_openmp(write(tmp_path, {"maps": "\n".join(lines)})) == [
        "/a folder/lib/libgomp.so.1",
        "/b/libgomp-a34b3233.so.1.0.0",
    ]


def test_others_compete_from_the_first_look_and_until_four_without() -> None:
    contention = Contention()
    assert [contention.update(share) for share in (0.0, 0.05, 0.1)] == [False] * 3
    assert [contention.update(share) for share in (0.11, 0.0, 0.0, 0.0, 0.05, 0.0, 0.0, 0.0)] == [True] * 8
    assert [contention.update(share) for share in (0.0, 0.0, 0.05)] == [False] * 3
    assert contention.update(2.0)


def test_nothing_is_watched_where_the_user_chose_or_nothing_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spinning, "_watching", set())
    monkeypatch.setattr(spinning, "spinning_threads", lambda: False)
    assert not spin_only_on_idle_cpus()
    monkeypatch.setattr(spinning, "spinning_threads", lambda: True)
    monkeypatch.setattr(spinning, "_SELF", tmp_path)
    assert not spin_only_on_idle_cpus(), "the system says nothing"
    write(tmp_path, {"task/7/schedstat": "1 2 3"})
    assert not spin_only_on_idle_cpus(), "no OpenMP of GNU's"
    write(tmp_path, {"maps": "7f00-7f01 r-xp 00000000 fe:01 99   /lib/libgomp.so.1"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(65)))
    assert not spin_only_on_idle_cpus(), "too many CPUs"


# A thread that spins for hours never sleeps of itself; one that does not, in nearly each pause.
SWITCHED = """
import ctypes, os, sys, time
from pathlib import Path
from boxwright.base.spinning import Spinning, loaded_openmp

openmp = ctypes.CDLL(sys.argv[1])
nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)

def compute():
    openmp.GOMP_parallel(nothing, None, ctypes.c_uint(2), ctypes.c_uint(0))

def slept():
    count = 0
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            try:
                lines = Path("/proc/self/task", thread, "status").read_text().splitlines()
            except OSError:  # one of the team's, which ends
                continue
            count += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary"))
    return count

def sleeps():
    compute()
    before = slept()
    for _ in range(100):
        compute()
        time.sleep(0.002)
    return slept() - before

spinning = Spinning(loaded_openmp(Path("/proc/self")))
for allowed in (True, False, False, True):
    spinning.allow(allowed=allowed)
    print(sleeps())
"""
NEEDS = pytest.mark.skipif(
    not loaded_openmp(Path("/proc/self")) or len(os.sched_getaffinity(0)) < 2, reason="needs GNU's OpenMP and two CPUs"
)


def output(code: str, *arguments: str) -> list[str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    known["GOMP_SPINCOUNT"] = "1000000000000"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=known, capture_output=True, text=True, timeout=300, check=True).stdout.split()


@NEEDS
def test_an_idle_team_switches_spinning_off_and_its_end_on_again() -> None:
    first, off, still_off, on = map(int, output(SWITCHED, loaded_openmp(Path("/proc/self"))[0]))
    assert min(off, still_off) >= 50 > 10 >= max(first, on)


WATCHED = """
import os, subprocess, sys, time
import torch
from boxwright.base import spinning
from boxwright.base.device import open_device

del os.environ["GOMP_SPINCOUNT"]
real, said = spinning.Spinning.allow, []
def allow(self, *, allowed):
    said.append(allowed)
    real(self, allowed=allowed)
spinning.Spinning.allow = allow
torch.set_num_threads(2)
open_device("cpu")
open_device("cpu")
assert sum(thread.name == "spinning" for thread in spinning.threading.enumerate()) == 1
# They end with this process, also where it is killed.
compute = "import os; parent = os.getppid()\\nwhile os.getppid() == parent: pass"
others = [subprocess.Popen([sys.executable, "-c", compute]) for _ in range(2 * os.cpu_count())]
tensor = torch.zeros(1 << 20)
while False not in said:
    tensor.fill_(1.0)
for other in others:
    other.kill()
print("off")
"""


@pytest.mark.slow
@NEEDS
def test_programs_that_begin_later_are_noticed() -> None:
    assert output(WATCHED) == ["off"]
