"""docs/add_a_detector.md, followed to the letter: its files are written, its lines entered, and the detector trains."""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from boxwright.nn.postprocessing.postprocessor import Postprocessor
from tests.conftest import SMALL_TRAINING

ROOT = Path(__file__).parent.parent
_FENCE = re.compile(
    r'^```python title="(?P<path>[^"]+)"(?: (?P<where>after|before)="(?P<line>[^\n]*)")?\n(?P<text>.*?)^```',
    re.M | re.S,
)


class Step(NamedTuple):
    path: str
    where: str | None
    line: str
    text: str


def steps() -> list[Step]:
    text = (ROOT / "docs" / "add_a_detector.md").read_text()
    return [
        Step(match["path"], match["where"], (match["line"] or "").replace('\\"', '"'), match["text"])
        for match in _FENCE.finditer(text)
    ]


def follow(step: Step, root: Path) -> None:
    path = root / step.path
    if step.where is None:
        assert not path.exists(), "a new file"
        path.parent.mkdir(exist_ok=True)
        path.write_text(step.text)
        return
    source = path.read_text()
    assert source.count(f"{step.line}\n") == 1, step.line
    both = f"{step.line}\n{step.text}" if step.where == "after" else f"{step.text}{step.line}\n"
    path.write_text(source.replace(f"{step.line}\n", both))


def test_its_postprocessor_has_the_methods_that_detectors_call() -> None:
    (text,) = (step.text for step in steps() if step.path.endswith("postprocessor.py"))
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    parameters = {function.name: [argument.arg for argument in function.args.args] for function in functions}
    for name in ("decode", "select", "above"):
        assert parameters[name] == list(inspect.signature(getattr(Postprocessor, name)).parameters)


def test_it_takes_a_folder_and_a_line_with_its_import() -> None:
    new = [Path(step.path) for step in steps() if step.where is None]
    changed = [step for step in steps() if step.where is not None]
    assert {path.parent for path in new} == {Path("src/boxwright/families/cells")}
    assert len(new) == 6
    assert {step.path for step in changed} == {"src/boxwright/families/table.py"}
    assert [len(step.text.splitlines()) for step in changed] == [1, 1]


def test_following_the_page_changes_no_other_line(extended: Path) -> None:
    new = {step.path for step in steps() if step.where is None}
    lines = 0
    for path in sorted((extended / "src").rglob("*.py")):
        name = str(path.relative_to(extended))
        if name not in new:
            before, after = (ROOT / name).read_text().splitlines(), path.read_text().splitlines()
            changes = [line for line in difflib.ndiff(before, after) if line[0] in "+-"] if before != after else []
            assert all(line.startswith("+") for line in changes), name
            lines += len(changes)
    assert lines == 2


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """The package with the detector of the page added."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for step in steps():
        follow(step, tmp_path)
    return tmp_path


def run(extended: Path, *words: object) -> str:
    return run_python(extended, "-m", "boxwright", *words)


def run_python(extended: Path, *words: object) -> str:
    finished = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(extended / "src"), "COLUMNS": "200"},
        cwd=extended,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def small_config(shapes_data: Path, model: str) -> str:
    return f"""
{model}
{SMALL_TRAINING.replace("num_steps: 6", "num_steps: 40")}
train_input_reader {{
  label_map_path: "{shapes_data}/label_map.pbtxt"
  tf_record_input_reader {{ input_path: "{shapes_data}/train.record-?????-of-00002" }}
}}
eval_input_reader {{
  label_map_path: "{shapes_data}/label_map.pbtxt"
  tf_record_input_reader {{ input_path: "{shapes_data}/val.record" }}
}}
"""


def test_the_linters_have_nothing_against_it(extended: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", extended)
    tools = Path(sys.executable).parent
    files = [step.path for step in steps()]
    for command in (("ruff", "check", *files), ("ruff", "format", "--check", *files), ("lint-imports", "--no-cache")):
        finished = subprocess.run(
            [tools / command[0], *command[1:]],
            env={**os.environ, "PYTHONPATH": str(extended / "src")},
            cwd=extended,
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.slow  # checks the whole package
def test_its_types_are_right(extended: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", extended)
    folder = "src/boxwright/families/cells"
    finished = subprocess.run(
        [Path(sys.executable).parent / "mypy", "--cache-dir", str(extended / "cache"), folder],
        env={**os.environ, "PYTHONPATH": str(extended / "src"), "MYPYPATH": str(extended / "src")},
        cwd=extended,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.slow
def test_the_detector_of_the_page_trains_in_a_program_of_its_own(extended: Path, shapes_data: Path) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "add_a_detector.md").read_text(), re.M | re.S)
    assert len(programs) == 1
    (extended / "pipeline.config").write_text(small_config(shapes_data, ""))
    (extended / "program.py").write_text(programs[0] + "print(metrics)\n")
    assert "DetectionBoxes_Precision/mAP" in run_python(extended, extended / "program.py")
    lines = [json.loads(line) for line in (extended / "cells" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["Loss/total_loss"] for line in lines if "learning_rate" in line]
    assert losses[-1] < losses[0]
    assert 'name: "Cells"' in (extended / "cells" / "pipeline.config").read_text()


@pytest.mark.slow
def test_the_detector_of_the_page_trains_evaluates_and_is_fine_tuned(extended: Path, shapes_data: Path) -> None:
    config = extended / "cells.config"
    resizer = "image_resizer { fixed_shape_resizer { height: 64 width: 64 } }"
    model = f"model {{ cells {{ num_classes: 4 depth: 32 {resizer} }} }}"
    config.write_text(small_config(shapes_data, model))
    assert "0 refused" in run(extended, "config", "check", config)
    assert "cells" in run(extended, "config", "fields", "DetectionModel")
    common = ("--config", config, "--model_dir", extended / "m", "--workers", 0)
    run(extended, "train", *common, "--num_train_steps", 20, "--log_every_n", 1, "--no_evaluate")
    assert "resum" in run(extended, "train", *common, "--log_every_n", 1)  # the same run, to its end
    lines = [json.loads(line) for line in (extended / "m" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["Loss/total_loss"] for line in lines if "Loss/total_loss" in line]
    assert len(losses) >= 40
    assert sum(losses[-5:]) < sum(losses[:5])
    output = run(extended, "evaluate", "--model_dir", extended / "m", "--out", extended / "e")
    assert "AP50 " in output
    assert len(json.loads((extended / "e" / "detections.json").read_text())) > 0
    tuned = ("--set", f"train_config.fine_tune_checkpoint={extended}/m", "--set", "train_config.num_steps=1")
    common = ("--config", config, "--model_dir", extended / "t", "--workers", 0, "--no_evaluate", *tuned)
    report = run(extended, "train", *common, "--set", "train_config.fine_tune_checkpoint_type=detection")
    assert "scope 'detection' does not restore the heads" in report
