"""The detector that comes with the package, by its name."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import boxwright as bw
from boxwright.cli.options import source_path
from boxwright.data.sample_data import BLOOD_CELLS
from boxwright.weights.demo_model import DEMO_MODEL, demo_model
from boxwright.weights.export_weights import FILES, WEIGHTS
from boxwright.weights.find_weights import find_weights
from boxwright.weights.open_model import export_folder, output_folder


def test_it_is_small_and_in_half_precision() -> None:
    assert {path.name for path in DEMO_MODEL.iterdir()} == {*FILES, "README.md"} - {"keypoint_label_map.pbtxt"}
    assert (DEMO_MODEL / WEIGHTS).stat().st_size < 2_500_000
    with safe_open(DEMO_MODEL / WEIGHTS, "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}  # noqa: SIM118  # no mapping


def test_it_computes_in_float32_and_has_names() -> None:
    model = bw.load("demo")
    assert model.names == ["Platelets", "RBC", "WBC"]
    weights = model.detector.network.state_dict().values()
    assert {tensor.dtype for tensor in weights if tensor.is_floating_point()} == {torch.float32}


def test_the_readmes_first_lines_work_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    result = bw.load("demo")(bw.sample_images()[0])
    # BloodImage_00007.xml has one WBC, which 0.6 times its corners are.
    cells = result[(result.scores > 0.5) & (result.labels == 2)]
    assert cells.names() == ["WBC"]
    np.testing.assert_allclose(cells.boxes[0], [115.8, 55.2, 232.2, 171.0], atol=12)


def test_a_model_of_that_name_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for source in ("demo", Path("demo")):
        assert demo_model(source) == DEMO_MODEL
    assert demo_model("./demo") is None  # a path, which is to be this folder
    assert demo_model("model") is None
    # What `boxwright demo` writes is no model, and neither is a folder of data.
    (tmp_path / "demo" / "model-2-minutes").mkdir(parents=True)
    (tmp_path / "demo" / "model-2-minutes" / "ckpt-3.pt").touch()
    (tmp_path / "demo" / "pipeline.config").touch()
    assert demo_model("demo") == source_path("demo") == DEMO_MODEL
    assert find_weights("demo")[0] == str(DEMO_MODEL)
    for name in ("ckpt-3.pt", "best.pt", "ckpt-0.index", "model.safetensors", "saved_model.pb"):
        file = tmp_path / "demo" / name
        file.touch()
        assert demo_model("demo") is None, name
        assert source_path("demo") == Path("demo")
        file.unlink()
    shutil.rmtree("demo")
    Path("demo").touch()
    assert demo_model("demo") is None


def test_what_is_made_of_it_goes_to_the_working_folder(tmp_path: Path) -> None:
    assert output_folder(DEMO_MODEL) == Path()
    assert export_folder(DEMO_MODEL) == Path("export")
    assert output_folder(tmp_path / "ckpt-3.pt") == tmp_path


@pytest.mark.slow
def test_its_export_goes_to_the_working_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(DEMO_MODEL.iterdir())
    path = bw.load("demo").export("pt2", images=bw.sample_images()[:1])
    assert path == Path("export/detector.pt2")
    assert path.is_file()
    assert sorted(DEMO_MODEL.iterdir()) == before


def test_its_card_says_what_it_is() -> None:
    card = (DEMO_MODEL / "README.md").read_text()
    images = json.loads((BLOOD_CELLS / "train.json").read_text())["images"]
    assert f"{len(images)} training pictures" in card
    for said in ("shenggan (MIT)", "weights: Apache-2.0", "release/make_demo_model.py", "AP50 0."):
        assert said in card
    assert str(Path.home()) not in (DEMO_MODEL / "pipeline.config").read_text()


@pytest.mark.slow
def test_the_cards_average_precision_is_that_of_the_file(tmp_path: Path) -> None:
    import re

    from boxwright.cli.demo_cells import evaluate_shipped

    metrics, pictures = evaluate_shipped(tmp_path)
    assert len(pictures) == 72
    stated = re.search(r"\*\*AP (0\.\d{3}), AP50 (0\.\d{3})\*\*", (DEMO_MODEL / "README.md").read_text())
    assert stated is not None
    measured = [metrics[f"DetectionBoxes_Precision/mAP{overlap}"] for overlap in ("", "@.50IOU")]
    # Kernels of other processors round otherwise.
    assert measured == pytest.approx([float(number) for number in stated.groups()], abs=0.003)
