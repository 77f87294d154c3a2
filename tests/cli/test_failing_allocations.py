"""Each large allocation of a command fails once: a line that names the shortage, nothing damaged, nothing called damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import boxwright as bw
from boxwright.base.files import MARKER
from boxwright.data.convert import write_coco, write_tfrecords
from boxwright.data.image_io import encode_png
from boxwright.data.shapes import ShapesDataset
from boxwright.weights.store import CheckpointStore, load_sealed_archive
from tests.conftest import small_config_text
from tests.failing_allocations import Outcome, failing_malloc, run_failing
from tests.fuzz.readers import small_checkpoint

PREDICT = ["predict", "a.png", "--checkpoint", "ckpt-1.pt", "--out", "out", "--csv", "--coco"]
CONVERT = ["convert", "a.json", "out/a.record"]
TRAIN = [
    *("train", "--config", "pipeline.config", "--model_dir", "run", "--num_train_steps", "4", "--workers", "0"),
    "--no-evaluate",
]


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A folder with what the commands read."""
    folder = tmp_path / "before"
    folder.mkdir()
    (folder / "ckpt-1.pt").write_bytes(small_checkpoint()[0])
    (folder / "a.png").write_bytes(encode_png(ShapesDataset(1, seed=2, size=(300, 400))[0].image))
    write_coco(ShapesDataset(6, seed=3, size=(200, 240)), folder / "a.json")
    return folder


def require_told(outcome: Outcome) -> None:
    """Refuse an end that is neither a success nor a line which says that memory was short."""
    assert "Traceback" not in outcome.said, outcome.said
    assert outcome.status in (0, 1), (outcome.number, outcome.status, outcome.said)
    if outcome.status:
        last = outcome.said.strip().splitlines()[-1]
        assert last.startswith("error: "), last
        assert "not enough memory" in last, last
    assert not any(word in outcome.said for word in ("damaged", "skipped")), outcome.said


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize(("words", "least"), [(PREDICT, 100), (CONVERT, 30)], ids=["predict", "convert"])
def test_each_large_allocation_fails_once(words: list[str], least: int, before: Path) -> None:
    """What is written is whole, or in a folder that says that it is not; what was read is what it was."""
    given, expected, tried = files(before), {}, 0
    for outcome in run_failing(failing_malloc(before.parent), before, words):
        require_told(outcome)
        found, out = files(outcome.folder), files(outcome.folder / "out")
        assert {name: found[name] for name in given} == given
        expected = expected or out
        assert out == expected if outcome.status == 0 else MARKER in out or out.items() <= expected.items(), outcome
        tried += 1
    assert tried > least


@pytest.mark.slow
def test_large_allocations_of_a_run_that_goes_on_fail_once(tmp_path: Path) -> None:
    """One of sixteen: the run's checkpoints open, and the weights of a step are those of the run that had its memory."""
    data, before = tmp_path / "data", tmp_path / "before"
    data.mkdir()
    before.mkdir()
    write_tfrecords(ShapesDataset(4, seed=3, size=(96, 120)), data / "train.record", num_shards=2)
    write_tfrecords(ShapesDataset(2, seed=4, size=(96, 120)), data / "val.record", num_shards=1)
    (before / "pipeline.config").write_text(small_config_text(data))
    config = bw.load_config(before / "pipeline.config", ["train_config.num_steps=2"])
    bw.train(config, before / "run", bw.RunSettings(workers=0, device="cpu"))
    expected, tried = {}, 0
    for outcome in run_failing(failing_malloc(tmp_path), before, TRAIN, every=16):
        require_told(outcome)
        found = {}
        for path in CheckpointStore(outcome.folder / "run").paths():
            found[path.name] = load_sealed_archive(path)["network"]
        assert "ckpt-2.pt" in found
        expected = expected or found
        assert outcome.status == 1 or found.keys() == expected.keys()
        if "parts from here on" in outcome.said:  # a batch that did not fit is learned from in parts
            found = {"ckpt-2.pt": found["ckpt-2.pt"]}
        for name in found.keys() & expected.keys():
            assert all(torch.equal(value, expected[name][key]) for key, value in found[name].items()), outcome
        tried += 1
    assert tried > 30
