"""The README's commands, run as they stand, in a folder laid out as it says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from website.models import latencies

from boxwright.config.load import parse_message
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline
from boxwright.training.autoconfig.choices import DEFAULT_PRESET
from boxwright.weights.export_weights import write_tensorflow_checkpoint
from boxwright.weights.published import find_published
from boxwright.weights.tensorflow.bundle import Bundle
from tests.cli.test_commands import run
from tests.conftest import SMALL_MODEL, SMALL_TRAINING, extra_folder

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
    assert [command[0] for command in COMMANDS].count("boxwright") == 13
    assert [command[0] for command in COMMANDS if command[0] != "boxwright"] == ["pip"]
    for target in ("demo", "test", "parity"):
        assert f"`make {target}`" in README
    assert [language for language, _ in BLOCKS].count("python") == 1


def test_it_is_read_in_one_go() -> None:
    assert len(README.splitlines()) <= 160


def test_the_table_of_models_is_what_is_published_and_was_measured() -> None:
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\| `.*$", README, re.MULTILINE)]
    *rows, default = cells
    assert len(rows) == 13
    measured = latencies("onnxruntime")
    for name, ap, milliseconds, size, license in rows:
        weights = find_published(name.strip("`"))
        assert weights is not None
        assert weights.opens
        assert (float(ap), license) == (weights.coco_box_ap, weights.license)
        assert size == ("" if weights.size is None else f"{weights.size / 1e6:.0f}")
        assert milliseconds == str(measured.get(weights.presets[0], ""))
    assert default[0].strip("`") == DEFAULT_PRESET
    assert [float(row[1]) for row in rows] == sorted((float(row[1]) for row in rows), reverse=True)


def test_nothing_is_hidden_in_comments() -> None:
    assert "<!--" not in README


def test_what_is_said_of_the_raccoons_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's example is what `config check` prints."""
    folder = extra_folder("BOXWRIGHT_DATA")
    if folder is None:
        pytest.skip("BOXWRIGHT_DATA names no folder with the raccoons' project")
    (theirs,) = (folder / "raccoon" / "training").glob("*.config")
    monkeypatch.chdir(tmp_path)
    shutil.copy(theirs, tmp_path / "pipeline.config")
    (example,) = (block for language, block in BLOCKS if language == "text")
    assert run("config", "check", "pipeline.config").startswith(example)


@pytest.mark.slow
def test_commands_and_python_run(shapes_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(shapes_data, tmp_path / "data", ignore=shutil.ignore_patterns("coco", "voc"))
    shutil.copytree(shapes_data / "voc", tmp_path / "my-data")
    readers = 'train_input_reader { label_map_path: "?" tf_record_input_reader { input_path: "?" } } eval_config { }'
    readers += ' eval_input_reader { label_map_path: "?" tf_record_input_reader { input_path: "?" } }'
    (tmp_path / "pipeline.config").write_text(SMALL_MODEL + SMALL_TRAINING + readers)
    shutil.copytree(shapes_data / "voc" / "JPEGImages", tmp_path / "photos")
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "pipeline.config").write_text(SMALL_MODEL)
    detector = build_detector(parse_message(SMALL_MODEL, Pipeline))
    write_tensorflow_checkpoint(detector, tmp_path / "exported" / "checkpoint" / "ckpt-0")
    shutil.copy(next(iter(sorted((tmp_path / "photos").iterdir()))), tmp_path / "photo.jpg")
    for command in COMMANDS:
        if command[0] == "boxwright":
            run(*command[1:])
    assert Bundle(tmp_path / "out" / "ckpt-1").verify() == []
    (source,) = (block for language, block in BLOCKS if language == "python")
    exec(compile(source, "README.md", "exec"), {})
    assert (tmp_path / "out.jpg").is_file()


def test_targets_of_make_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("install", "demo", "test", "test-all", "parity", "check"):
        assert re.search(rf"^{target}: ", makefile, re.MULTILINE)


def test_links_lead_somewhere() -> None:
    for file in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", file.read_text()):
            assert (file.parent / target).exists(), (file, target)
