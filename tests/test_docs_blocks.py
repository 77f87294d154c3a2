"""The code blocks of every page, run as they stand in a folder that has what they name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from website.sections import ELSEWHERE as OTHERS

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline
from boxwright.weights.export_weights import write_tensorflow_checkpoint
from tests.api.models import small_run
from tests.cli.test_commands import run
from tests.conftest import SMALL_MODEL, SMALL_TRAINING
from tests.docs_blocks import NOT_RUN, ROOT, RUN, blocks, run_blocks
from tests.made_once import made_once
from tests.training.autoconfig.datasets import voc, yolo

PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / path for path in OTHERS.values() if path != "README.md")])
# Run by tests of their own, which check what they do, too.
ELSEWHERE = {"add_a_detector.md", "python.md"}
TO_RUN = [
    page
    for page in PAGES
    if page.name not in ELSEWHERE and any(block.reason is None and block.language in RUN for block in blocks(page))
]


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(ROOT).with_suffix("")).removeprefix("docs/")
)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        assert block.language in RUN + NOT_RUN, f"{page.name}:{block.line}: {block.language}"
        assert block.reason is None or len(block.reason) > 5
    assert page.read_text().count("\n```") + page.read_text().startswith("```") == 2 * len(blocks(page))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a run, its configuration, photos, data of several formats, and TensorFlow's checkpoint."""
    small = small_run()
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small.folder, tmp_path / "model")
    shutil.copytree(small.folder, tmp_path / "demo" / "model")
    for model in (tmp_path / "model", tmp_path / "demo" / "model"):
        (model / "export").mkdir()
        shutil.copy(small.onnx, model / "export" / "detector.onnx")
    shutil.copy(small.config, tmp_path / "pipeline.config")
    with Image.open(small.picture) as picture:
        for path in ("photo.jpg", "photos/1.jpg", "photos/2.jpg", "images/1.jpg"):
            (tmp_path / path).parent.mkdir(exist_ok=True)
            picture.save(tmp_path / path)
    _evaluated(tmp_path)
    voc(tmp_path / "my-data")
    yolo(tmp_path / "yolo")
    _tensorflow(tmp_path)
    _coco_files(tmp_path)
    return tmp_path


def _evaluated(folder: Path) -> None:
    """Evaluate the run once for all tests; three folders of a page have the result."""
    evaluated = made_once(
        "docs-evaluation", lambda made: run("evaluate", "--model_dir", folder / "model", "--out", made / "eval")
    )
    for name in ("model/eval", "eval-before", "eval-after"):
        shutil.copytree(evaluated / "eval", folder / name, dirs_exist_ok=True)


def _tensorflow(folder: Path) -> None:
    """Write a checkpoint of TensorFlow's format, and the configuration of their detector."""
    detector = build_detector(parse_message(SMALL_MODEL, Pipeline))
    write_tensorflow_checkpoint(detector, folder / "exported" / "checkpoint" / "ckpt-0")
    (folder / "exported" / "pipeline.config").write_text(SMALL_MODEL)
    # The configuration of these checkpoints, for pages that use both.
    data = (folder / "pipeline.config").read_text()
    readers = data[data.index("train_input_reader") :]
    (folder / "tensorflow.config").write_text(SMALL_MODEL + SMALL_TRAINING + readers)


def _coco_files(folder: Path) -> None:
    """Write an image's annotations and the detections of some detector, as COCO's files."""
    box = {"bbox": [10, 10, 40, 30], "category_id": 1, "image_id": 1}
    truth = {
        "images": [{"id": 1, "file_name": "1.jpg", "width": 96, "height": 96}],
        "categories": [{"id": 1, "name": "thing"}],
        "annotations": [{**box, "id": 1, "area": 1200, "iscrowd": 0}],
    }
    (folder / "instances.json").write_text(json.dumps(truth))
    (folder / "results.json").write_text(json.dumps([{**box, "score": 0.9}]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", TO_RUN, ids=lambda page: str(page.relative_to(ROOT).with_suffix("")).removeprefix("docs/")
)
def test_blocks_run(page: Path, home: Path) -> None:
    if "tensorflow" in page.stem:
        shutil.copy(home / "tensorflow.config", home / "pipeline.config")
    if page.stem == "tensorflow_users":
        bw.train("tensorflow.config", "model_dir", device="cpu", workers=0, evaluate=False)
    if page.stem == "tour":  # it makes its own demo
        shutil.rmtree(home / "demo")
    assert run_blocks(page) > 0
