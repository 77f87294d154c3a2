"""Which engine spreads work, and how a child process is started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from boxwright.base.errors import ConfigError
from boxwright.base.worker_pools import child_environment, module_command, parse_engine


def test_a_gpu_by_its_number_is_not_for_ray() -> None:
    with pytest.raises(ConfigError, match="--engine ray --device cuda:1: Ray assigns each worker its own GPU"):
        parse_engine("ray", "cuda:1")
    assert parse_engine("ray", "cuda") is parse_engine("ray")


def test_an_engine_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="--engine slurm: expected local or ray"):
        parse_engine("slurm")


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
