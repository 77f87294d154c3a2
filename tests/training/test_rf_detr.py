"""RF-DETR trains, resumes to the bit, is evaluated and predicts as others do; a batch in parts is the batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import boxwright as bw
from boxwright.weights.export_weights import weights_sha256
from tests.rf_detrs import RF_DETR
from tests.training.detrs import OBJECTS, check_learns_by_heart, check_parts, check_step, learner, write_config
from tests.training.test_refinedet import run

OWN_INITIALIZERS = True


@pytest.fixture
def rf_detr_config(small_config: Path, tmp_path: Path) -> Path:
    return write_config(small_config, RF_DETR, tmp_path / "rf_detr.config")


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_add_up_to_the_batch(rf_detr_config: Path, parts: int) -> None:
    assert len(check_parts(rf_detr_config, parts)) == 5  # three terms, regularization and the total


@pytest.mark.parametrize("objects", OBJECTS)
@pytest.mark.parametrize("more", [(), ("train_config.use_bfloat16=true",)])
def test_a_step_of_any_objects(rf_detr_config: Path, objects: str, more: tuple[str, ...]) -> None:
    """More objects than queries, too; and without any, every weight has a gradient all the same."""
    losses = check_step(rf_detr_config, objects, *more)
    if objects == "none":
        assert losses["Loss/l1_loss"] == 0


def test_other_sizes_of_inputs_have_fewer_cells_than_queries(rf_detr_config: Path) -> None:
    """A grid of 4 × 4 cells for 20 queries, as nano has too few at its smallest sizes of training."""
    changes = [f"model.rf_detr.image_resizer.fixed_shape_resizer.{side}=32" for side in ("height", "width")]
    one, batch = learner(rf_detr_config, *changes)
    report = one.step(batch)
    assert all(torch.isfinite(torch.as_tensor(value)) for value in report.losses.values())
    detections = one.state.detector.eval().detect([torch.zeros(3, 40, 60, dtype=torch.uint8)])
    assert len(detections) == 1


def test_train_go_on_evaluate_predict(rf_detr_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    """In one go and in two it ends with the same bits."""
    folders = tmp_path / "whole", tmp_path / "parts"
    shared = ("--config", rf_detr_config, "--workers", 0, "--log_every_n", 1, "--no-evaluate")
    run("train", *shared, "--model_dir", folders[0], "--num_train_steps", 4)
    run("train", *shared, "--model_dir", folders[1], "--num_train_steps", 2)
    assert "resuming from" in run("train", *shared, "--model_dir", folders[1], "--num_train_steps", 4)
    digests = [weights_sha256(bw.load(folder).detector) for folder in folders]
    assert digests[0] == digests[1]
    output = run("evaluate", "--model_dir", folders[1], "--out", tmp_path / "e", "--sample_1_of_n_eval_examples", 6)
    assert "AP " in output
    image = next((shapes_data / "voc" / "JPEGImages").glob("*.jpg"))
    run("predict", image, "--model_dir", folders[1], "--min_score", 0, "--out", tmp_path / "p")
    assert json.loads((tmp_path / "p" / "detections.json").read_text())


@pytest.mark.slow
def test_learns_eight_images_by_heart(tmp_path: Path) -> None:
    """AP at an overlap of a half is 0.9 and more on the images that it is trained on, within 400 steps."""
    model = """rf_detr { num_classes: 4
      feature_extractor { width: 96 depth: 4 num_heads: 4 patch: 8 windows: 2 grid: 16 taken: [2, 4] }
      decoder { depth: 64 self_heads: 4 cross_heads: 4 feedforward: 128 num_queries: 60 num_groups: 5 }"""
    check_learns_by_heart(model, 5e-4, tmp_path)
