"""A stranger's way with a DETR: a folder, fine-tuning from weights of other classes, a report, an export, a prediction.

Classes keep their names throughout, whatever number their ids begin at in the annotations, and have the label map's ids,
from 1 on: names that are shifted by one after fine-tuning are what people report most of others' code.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import boxwright as bw
from boxwright.data.convert import write_coco
from boxwright.data.shapes import ShapesDataset
from tests.cli.test_commands import run
from tests.d_fines import DEIM
from tests.rf_detrs import RF_DETR
from tests.training.detrs import write_config

OWN_INITIALIZERS = True
MODELS = {"rf_detr": RF_DETR, "deim": DEIM}
IDS = {1: "circle", 2: "square", 3: "triangle", 4: "star"}


def write_data(folder: Path, first_id: int) -> None:
    """Write pictures with annotations in COCO's format, whose categories have ids from a number on."""
    write_coco(ShapesDataset(10, seed=3, size=(64, 80)), folder / "_annotations.coco.json")
    path = folder / "_annotations.coco.json"
    content = json.loads(path.read_text())
    shift = first_id - min(row["id"] for row in content["categories"])
    for row in content["categories"]:
        row["id"] += shift
    for row in content["annotations"]:
        row["category_id"] += shift
    path.write_text(json.dumps(content))


@pytest.mark.slow
@pytest.mark.parametrize("first_id", [0, 1])
@pytest.mark.parametrize("family", MODELS)
def test_from_a_folder_to_predictions(
    family: str, first_id: int, small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start = write_config(small_config, MODELS[family], tmp_path / "start.config")
    run("train", "--config", start, "--model_dir", "start", "--workers", 0, "--num_train_steps", 1, "--no-evaluate")
    write_data(tmp_path / "my-data", first_id)
    run("train", "my-data", "--model", "start", "--model_dir", "run", "--workers", 0, "--num_train_steps", 2)
    categories = bw.load("run").categories
    assert categories is not None
    assert {item.id: item.name for item in categories} == IDS
    run("evaluate", "--model_dir", "run", "--report", "evaluation")
    assert list(Path("evaluation").rglob("*.html"))
    # Two steps teach too little for the gate, which wants detections to compare.
    run("export", "run", "detector.onnx", "--allow_difference")
    pictures = sorted((tmp_path / "my-data").rglob("*.jpg"))[:2] or sorted((tmp_path / "my-data").rglob("*.png"))[:2]
    found = {}
    for model in ("run", "detector.onnx"):
        run("predict", *pictures, "--model", model, "--min_score", 0, "--out", f"of {model}")
        content = json.loads((Path(f"of {model}") / "detections.json").read_text())
        found[model] = {(row["category_id"], row["category_name"]) for row in content}
        assert found[model] <= set(IDS.items())
    assert found["run"] == found["detector.onnx"] != set()
