"""The README's commands, run as they stand, in a folder laid out as it says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from boxwright.builders.detector import build_detector
from boxwright.checkpoints.export_weights import write_tensorflow_checkpoint
from boxwright.config import Pipeline, parse_message
from boxwright.tensorflow.bundle import Bundle
from tests.cli.test_commands import run
from tests.conftest import SMALL_MODEL, SMALL_TRAINING

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    shlex.split(line)
    for language, block in BLOCKS
    if language == "sh"
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip()
]


def test_blocks_are_found() -> None:
    assert [command[0] for command in COMMANDS].count("boxwright") == 14
    assert [command[1] for command in COMMANDS if command[0] == "make"] == ["demo", "test"]
    assert "`make parity`" in README
    assert [language for language, _ in BLOCKS].count("python") == 1


@pytest.mark.slow
def test_commands_and_python_run(shapes_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(shapes_data, tmp_path / "data", ignore=shutil.ignore_patterns("coco", "voc"))
    shutil.copytree(shapes_data / "voc", tmp_path / "my-voc")
    readers = 'train_input_reader { label_map_path: "?" tf_record_input_reader { input_path: "?" } } eval_config { }'
    readers += ' eval_input_reader { label_map_path: "?" tf_record_input_reader { input_path: "?" } }'
    (tmp_path / "pipeline.config").write_text(SMALL_MODEL + SMALL_TRAINING + readers)
    shutil.copytree(shapes_data / "voc" / "JPEGImages", tmp_path / "photos")
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "pipeline.config").write_text(SMALL_MODEL)
    detector = build_detector(parse_message(SMALL_MODEL, Pipeline))
    write_tensorflow_checkpoint(detector, tmp_path / "exported" / "checkpoint" / "ckpt-0")
    for command in COMMANDS:
        if command[1] == "doctor":  # by now the paths are in it
            shutil.copy(tmp_path / "model" / "pipeline.config", tmp_path / "pipeline.config")
        if command[0] == "boxwright":
            run(*command[1:])
    assert Bundle(tmp_path / "out" / "ckpt-1").verify() == []
    (source,) = (block for language, block in BLOCKS if language == "python")
    image = np.zeros((50, 60, 3), np.uint8)
    exec(compile(source, "README.md", "exec"), {"image": image})


def test_targets_of_make_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("install", "demo", "test", "test-all", "parity", "check"):
        assert re.search(rf"^{target}: ", makefile, re.MULTILINE)


def test_links_lead_somewhere() -> None:
    for file in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", file.read_text()):
            assert (file.parent / target).exists(), (file, target)
