"""What each command says is useful next: one line, and a command that there is."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from boxwright.cli.main import app
from tests import forked
from tests.cli.test_commands import run, run_json


def next_of(output: str) -> str:
    """Return the last line's command, after reading it as the command line would."""
    (line,) = [line for line in output.splitlines() if line.startswith("next")]
    assert output.rstrip().splitlines()[-1] == line
    words = shlex.split(line.partition(": boxwright ")[2])
    group: Any = typer.main.get_command(app)
    top = group.make_context("boxwright", words[:1], resilient_parsing=True)
    _, command, rest = group.resolve_command(top, words)
    command.make_context(words[0], rest, parent=top)
    return " ".join(words)


@pytest.fixture
def trained(small_config: Path, tmp_path: Path) -> tuple[Path, str]:
    folder = tmp_path / "my model"
    steps = ["--epochs", 1, "--batch", 6, "--workers", 0, "--no_evaluate"]
    return folder, run("train", "--config", small_config, "--model_dir", folder, *steps)


def test_from_training_to_prediction(trained: tuple[Path, str], shapes_data: Path, tmp_path: Path) -> None:
    folder, output = trained
    assert "1 epoch of 12 images, 6 per step: 2 steps" in output
    assert next_of(output) == f"evaluate --model_dir {folder}"
    assert next_of(run("val", "--model", folder)) == f"predict IMAGES --model_dir {folder}"
    image = sorted((shapes_data / "voc" / "JPEGImages").glob("*.jpg"))[0]
    output = run("detect", image, "--model", folder, "--out", tmp_path / "p", "--conf", 0.1)
    assert next_of(output) == f"export {folder}"
    target = tmp_path / "w.safetensors"
    wanted = f"train --weights {target} --pipeline_config_path pipeline.config --model_dir model-2"
    assert next_of(run("export", "--model", folder, target)) == wanted


def test_a_run_that_is_not_done_goes_on(small_config: Path, tmp_path: Path) -> None:
    arguments = ["--config", small_config, "--model_dir", tmp_path / "m", "--workers", 0, "--no_evaluate"]
    output = run("train", *arguments, "--num_train_steps", 1000, "--max_seconds", 0.01, status=75)
    assert next_of(output) == f"train --pipeline_config_path {small_config} --model_dir {tmp_path / 'm'}"
    assert "next, to continue: boxwright train" in output


def test_before_training(small_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    assert next_of(run("config", "check", small_config)) == f"doctor {small_config}"
    assert next_of(run("convert", shapes_data / "voc", tmp_path / "c.json")) == f"inspect {tmp_path / 'c.json'}"
    sheet = ["--sheet", tmp_path / "s.png"]
    assert next_of(run("inspect", small_config, *sheet)) == f"doctor {small_config}"
    output = run("doctor", small_config, "--no_steps")
    assert next_of(output) == f"train --pipeline_config_path {small_config} --model_dir model"


@pytest.mark.slow
def test_what_programs_read_has_no_such_line(small_config: Path) -> None:
    assert json.loads(run_json("doctor", small_config, "--no_steps", "--json"))
    assert "next" not in run("config", "show", small_config)


@pytest.mark.slow
def test_weights_of_a_run_start_another(trained: tuple[Path, str], small_config: Path, tmp_path: Path) -> None:
    """All that fits is taken, with another number of classes too."""
    arguments = ["--config", small_config, "--model_dir", tmp_path / "second", "--workers", 0, "--no_evaluate"]
    output = run("train", *arguments, "--weights", trained[0], "--num_train_steps", 1)
    assert "0 reset" in output


@pytest.mark.slow
def test_the_table_of_a_benchmark(small_config: Path) -> None:
    """Names are whole in 80 columns, and the profiler, which is not Python, says nothing."""
    words = [sys.executable, "-m", "boxwright", "benchmark", str(small_config), "--batch", "1", "--rounds", "3"]
    done = forked.run(words, check=True, env={**os.environ, "COLUMNS": "80", "CUDA_VISIBLE_DEVICES": ""})
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    title = next(number for number, line in enumerate(lines) if line.split()[:2] == ["batch", "min"])
    assert lines[title + 1] == str(small_config)
    assert len(lines[title + 2].split()) == len(lines[title].replace("p95 ms", "p95").replace("CPU ms", "CPU").split())
    assert max(map(len, lines[title : title + 3])) <= max(80, len(str(small_config)))
