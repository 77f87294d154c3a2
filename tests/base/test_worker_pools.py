"""Which engine spreads work, and how a child process is started."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from boxwright.base import worker_pools
from boxwright.base.errors import ConfigError
from boxwright.base.worker_pools import child_environment, module_command, parse_engine, visible_gpus


def test_a_gpu_by_its_number_is_not_for_ray() -> None:
    with pytest.raises(ConfigError, match="--engine ray --device cuda:1: Ray assigns each worker its own GPU"):
        parse_engine("ray", "cuda:1")
    parse_engine("ray", "cuda")


def test_an_engine_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="--engine slurm: expected local or ray"):
        parse_engine("slurm")


class Counter:
    """What processes share of a number, in this process."""

    value = 0

    def __enter__(self) -> None:
        """Hold the lock."""

    def __exit__(self, *_: object) -> None:
        """Release it."""


def test_each_worker_sees_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pools, "_worker", [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # which each worker sets in its own process, here in this one
    counter, seen = Counter(), []
    for _ in range(5):
        worker_pools._make_worker(lambda: lambda task: (task, os.environ["CUDA_VISIBLE_DEVICES"]), counter, ("2", "5"))
        seen.append(worker_pools._run_task("a"))
    assert seen == [("a", name) for name in ("2", "5", "2", "5", "2")]


@pytest.mark.parametrize(
    ("device", "named", "gpus"),
    [
        ("auto", "2,5", ["2", "5"]),
        ("cuda", "GPU-a", ["GPU-a"]),
        ("cpu", "2", []),
        ("cuda:1", "0,1", []),
        ("auto", "", []),
    ],
)
def test_the_gpus_that_workers_share(device: str, named: str, gpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus(device) == gpus
    engine = parse_engine("local", device)
    assert isinstance(engine, partial)
    assert engine.keywords == {"gpus": gpus}


def test_a_module_of_the_working_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is downloaded to a folder with photos must not be what `import json` finds there."""
    (tmp_path / "json.py").write_text("import os; os.mkdir('ran')")
    (tmp_path / "boxwright").mkdir()
    (tmp_path / "boxwright" / "__init__.py").write_text("import os; os.mkdir('ran')")
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        module_command("boxwright.runtime.trial", "boxwright.runtime.sessions", "a.onnx", "8000000000", "3"),
        input=b"abc",
        env=child_environment(),
        capture_output=True,
        check=False,
    )
    assert b"is not an ONNX file, or damaged" in done.stdout
    assert not (tmp_path / "ran").exists()


UNGUARDED = """
from boxwright.base.errors import DataError
from boxwright.base.worker_pools import over_processes

def make():
    return str

{guard}
    print(*over_processes(make, [1, 2], 1))
"""


@pytest.mark.parametrize(("guard", "status"), [("if True:", 1), ('if __name__ == "__main__":', 0)])
def test_a_script_without_a_main_guard_is_told_of_it(guard: str, status: int, tmp_path: Path) -> None:
    """Each worker imports the script, and would start workers of its own there."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(guard=guard))
    done = subprocess.run(
        [sys.executable, str(script)], env=child_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    if status:
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("boxwright.base.errors.DataError: each worker imports the script again")
        assert last.endswith('put the script\'s work under `if __name__ == "__main__":`')
        assert "out of memory" not in done.stderr
        assert done.stderr.count("Traceback") == 1, "the workers' own ends say nothing"
    else:
        assert set(done.stdout.split()) == {"1", "2"}
