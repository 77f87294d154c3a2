"""A run and an export of the first version are resumed and opened by this one."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

import boxwright as bw
from boxwright.weights.store import read_checkpoint, save_archive
from tests.kept.contents import FOLDER, detections_of, losses_of, resumed_to, sums_of

EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def test_the_files_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir() if path.suffix not in (".py", "")}
    assert len(sizes) == 6
    assert max(sizes.values()) <= 300_000


def test_a_checkpoint_is_read_to_the_bit() -> None:
    assert sums_of(FOLDER / "ckpt-3.pt") == EXPECTED["sums"]
    detector, _, step = bw.restore_detector(FOLDER / "ckpt-3.pt")
    assert step == 3
    content = detector.network.state_dict()
    assert len(content) > 100


@pytest.mark.slow
def test_a_run_goes_on_as_it_would_have(tmp_path: Path) -> None:
    """To the digits in which processors differ; where it was recorded, to the bit."""
    for name in ("pipeline.config", "train.record", "label_map.pbtxt"):
        shutil.copy(FOLDER / name, tmp_path / name)
    (tmp_path / "run").mkdir()
    shutil.copy(FOLDER / "ckpt-3.pt", tmp_path / "run")
    assert resumed_to(6, tmp_path).is_file()
    found = losses_of(tmp_path / "run")
    assert found == pytest.approx(EXPECTED["losses"][3:], rel=1e-4)


def test_a_run_that_a_versions_own_kernels_computed_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("pipeline.config", "train.record", "label_map.pbtxt"):
        shutil.copy(FOLDER / name, tmp_path / name)
    (tmp_path / "run").mkdir()
    content = {**read_checkpoint(FOLDER / "ckpt-3.pt"), "compiled_kernels": ("norm_act", "depthwise")}
    with (tmp_path / "run" / "ckpt-3.pt").open("w+b") as file:
        save_archive(content, file)
    with caplog.at_level(logging.INFO, "boxwright.run"):
        checkpoint = resumed_to(4, tmp_path)
    assert sum("the last bits of numbers may change" in record.message for record in caplog.records) == 1
    assert "compiled_kernels" not in read_checkpoint(checkpoint)


def test_an_export_is_opened_and_finds_what_it_found() -> None:
    pytest.importorskip("onnxruntime")
    found, expected = detections_of(FOLDER / "detector.onnx"), EXPECTED["detections"]
    assert len(found) == len(expected) > 10
    # Of detections that score alike to the seventh digit the order is the processor's.
    scores = [sorted(one["score"] for one in some) for some in (found, expected)]
    assert np.allclose(*scores, atol=1e-4)
    assert {one["label"] for one in found} <= {0, 1, 2, 3}
