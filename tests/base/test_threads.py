"""How many threads there are, and how they wait: by files of control groups, and in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from boxwright.base import threads
from boxwright.base.threads import cpu_quota, prepare_threads, runtime_threads, usable_cpus

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
    monkeypatch.setattr(threads, "_visible_cpus", lambda: 8)
    monkeypatch.setattr(threads, "cpu_quota", lambda: 3)
    environment: dict[str, str] = {}
    prepare_threads(environment)
    assert environment == {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1", "OMP_NUM_THREADS": "3"}
    environment = {"OMP_NUM_THREADS": "5"}
    prepare_threads(environment)
    assert environment["OMP_NUM_THREADS"] == "5", "the user's own"


def test_other_runtimes_follow_the_users_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert runtime_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert runtime_threads() in (0, usable_cpus())


def seen_by(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", code], env={**known, **environment}, capture_output=True, text=True, check=True
    )


# A command in which 4 CPUs are visible, and a control group grants 1.
COMMAND = f"""
import os, sys
from boxwright.base import threads
threads._visible_cpus, threads.cpu_quota = lambda: 4, lambda: 1
from boxwright.cli import main
main.app = lambda args, prog_name: None
main.main()
print("torch" in sys.modules, *(os.environ.get(name, "-") for name in {VARIABLES}))
"""


def test_a_command_sets_how_many_threads_there_are_and_how_they_wait_before_pytorch_is_imported() -> None:
    assert seen_by(COMMAND).stdout.split() == ["False", "-", "1000", "1", "1"]


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_user_set_stays(name: str) -> None:
    value = "active" if name == "OMP_WAIT_POLICY" else "7"
    ours = {"OMP_NUM_THREADS": "1"}
    if name == "OMP_NUM_THREADS":
        ours |= {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
    wanted = {**ours, name: value}
    assert seen_by(COMMAND, **{name: value}).stdout.split()[1:] == [wanted.get(one, "-") for one in VARIABLES]


def test_nothing_changes_where_pytorch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cpu_quota", lambda: 1)
    environment: dict[str, str] = {}
    prepare_threads(environment)
    assert environment == {}


@pytest.mark.slow
def test_pytorch_and_gnus_openmp_read_it() -> None:
    """It says at its start what it goes by."""
    code = f"{COMMAND}\nimport torch; print(torch.get_num_threads(), 'libgomp' in open('/proc/self/maps').read())"
    done = seen_by(code, OMP_DISPLAY_ENV="VERBOSE")
    count, is_gnus = done.stdout.split()[-2:]
    assert count == "1"
    if is_gnus != "True":
        pytest.skip("this PyTorch has another OpenMP")
    assert "GOMP_SPINCOUNT = '1000'" in done.stderr


@pytest.mark.slow
def test_the_users_number_of_threads_stays() -> None:
    code = f"{COMMAND}\nimport torch; print(torch.get_num_threads())"
    assert seen_by(code, OMP_NUM_THREADS="2").stdout.split()[-1] == "2"
