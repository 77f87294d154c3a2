"""How many threads there are, and how they wait: by files of control groups, and in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from boxwright.base import threads
from boxwright.base.threads import (
    cpu_quota,
    others_compute,
    prepare_threads,
    runtime_threads,
    sleeping_threads,
    spinning_threads,
    usable_cpus,
)

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "20000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "rubbish\n"}, None),
        (  # a group above gives less than the process's own
            {
                "proc/self/cgroup": "0::/a.slice/b.scope\n",
                "sys/fs/cgroup/a.slice/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/a.slice/b.scope/cpu.max": "800000 100000\n",
            },
            3,
        ),
        (  # of version 1, in a container: the host's path is not there, the mount is the container's own group
            {
                "proc/self/cgroup": "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/job\n0::/\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_quotas_of_control_groups(files: dict[str, str], wanted: int | None, tmp_path: Path) -> None:
    assert cpu_quota(write(tmp_path, files)) == wanted


def test_there_is_a_cpu_at_least() -> None:
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)


def test_a_container_with_fewer_cpus_than_it_sees_has_as_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(threads, "usable_cpus", lambda: 3)
    monkeypatch.setattr(threads, "_visible_cpus", lambda: 8)
    environment: dict[str, str] = {}
    threads.prepare_threads(environment)
    assert environment["OMP_NUM_THREADS"] == "3"
    environment = {"OMP_NUM_THREADS": "5"}
    threads.prepare_threads(environment)
    assert environment["OMP_NUM_THREADS"] == "5", "the user's own"


def test_other_runtimes_follow_the_users_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert runtime_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert runtime_threads() in (0, usable_cpus())


def seen_by(code: str, **environment: str) -> list[str]:
    known = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    result = subprocess.run(
        [sys.executable, "-c", code], env={**known, **environment}, capture_output=True, text=True, check=True
    )
    return result.stdout.split()


SPINS = ("100000", "5000")  # 5000 in a container with fewer CPUs than are visible
SHOW = "import os; print(*(os.environ.get(name, '-') for name in ('GOMP_SPINCOUNT', 'OMP_NUM_THREADS')))"


def test_importing_boxwright_first_says_how_threads_wait() -> None:
    """And brings no torch with it."""
    code = f"import sys, boxwright; assert 'torch' not in sys.modules; {SHOW}"
    assert seen_by(code)[0] in ("0", *SPINS)  # by what else runs


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0.00 0.00 0.00 1/205 9798\n", False),
        ("9.00 9.00 9.00 2/205 9798\n", False),
        ("0.00 0.00 0.00 3/205 9798\n", True),  # two besides the one that asks, on four CPUs
        ("0.00 0.00\n", False),
        ("0.00 0.00 0.00 many/205 9798\n", False),
    ],
)
def test_other_programs(text: str, wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert not others_compute(tmp_path)
    assert others_compute(write(tmp_path, {"proc/loadavg": text})) == wanted


def test_what_wakes_for_a_moment_is_no_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    busy, quiet = ({"proc/loadavg": f"0.00 0.00 0.00 {running}/205 9798\n"} for running in (5, 1))
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        write(tmp_path, quiet)

    monkeypatch.setattr(threads.time, "sleep", sleep)
    write(tmp_path, busy)
    assert not others_compute(tmp_path)
    assert len(looks) == 1


@pytest.mark.parametrize("quota", [None, 3])
@pytest.mark.parametrize("loaded", [False, True])
def test_threads_sleep_beside_other_programs(loaded: bool, quota: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_visible_cpus", lambda: 4)
    monkeypatch.setattr(threads, "cpu_quota", lambda: quota)
    monkeypatch.setattr(threads, "others_compute", lambda: loaded)
    monkeypatch.delitem(threads.sys.modules, "torch", raising=False)
    environment: dict[str, str] = {}
    prepare_threads(environment)
    assert environment["GOMP_SPINCOUNT"] == ("0" if loaded else "100000" if quota is None else "5000")
    assert environment["KMP_BLOCKTIME"] == ("0" if loaded else "1")
    assert sleeping_threads(environment) == loaded
    assert spinning_threads(environment) != loaded


@pytest.mark.slow
def test_importing_torch_first_changes_nothing() -> None:
    assert seen_by(f"import torch, boxwright; {SHOW}") == ["-", "-"]


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_set_stays(name: str) -> None:
    value = "active" if name == "OMP_WAIT_POLICY" else "7"
    code = f"import boxwright, os; print(*(os.environ.get(name, '-') for name in {VARIABLES[:3]}))"
    assert seen_by(code, **{name: value}) == [value if one == name else "-" for one in VARIABLES[:3]]


@pytest.mark.slow
def test_pytorch_takes_as_many_threads_as_a_quota_gives() -> None:
    code = "import os; os.sched_getaffinity = lambda _: {0, 1, 2, 3}; import boxwright.base.threads as threads; "
    code += "threads.cpu_quota = lambda: 1; os.environ.pop('OMP_NUM_THREADS', None); threads.prepare_threads(); "
    code += "import torch; print(torch.get_num_threads(), 'OMP_NUM_THREADS : 1' in torch.__config__.parallel_info())"
    assert seen_by(code) == ["1", "True"]


@pytest.mark.slow
def test_the_users_number_of_threads_stays() -> None:
    code = "import boxwright.base.threads as threads; threads.usable_cpus = lambda: 1; threads.prepare_threads(); import torch"
    assert seen_by(f"{code}; print(torch.get_num_threads())", OMP_NUM_THREADS="2") == ["2"]


@pytest.mark.slow
def test_gnus_openmp_reads_it() -> None:
    """It says at its start what it goes by."""
    known = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    code = "import boxwright, torch, sys; print('libgomp' in open('/proc/self/maps').read())"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**known, "OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        check=True,
    )
    if result.stdout.strip() != "True":
        pytest.skip("this PyTorch has another OpenMP")
    assert any(f"GOMP_SPINCOUNT = '{count}'" in result.stderr for count in ("0", *SPINS))


def test_threads_spin_unless_the_user_chose_otherwise() -> None:
    assert spinning_threads({"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": ""}), "OpenMP's default"
    assert not spinning_threads({"GOMP_SPINCOUNT": "7"})
    assert not spinning_threads({"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "100000", "KMP_BLOCKTIME": "1"})
