"""RF-DETR trains, resumes to the bit, is evaluated and predicts as others do; a batch in parts is the batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import boxwright as bw
from boxwright.weights.export_weights import weights_sha256
from tests.cli.test_commands import run
from tests.rf_detrs import RF_DETR
from tests.training.detrs import OBJECTS, check_parts, check_step, learn_by_heart, learner, write_config

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


def test_each_block_learns_at_its_own_rate(small_config: Path, tmp_path: Path) -> None:
    """The preset's rates are the authors': 1.5 × 0.7² × 0.8 to the power of how many layers are above, of a rate of 1e-4.

    AdamW's first step moves a weight by its rate, as long as its gradient is far from 0.
    """
    path = tmp_path / "nano.config"
    readers = small_config.read_text().partition("train_input_reader")[2]
    model = """num_classes: 4 image_resizer { fixed_shape_resizer { height: 128 width: 128 } }
      feature_extractor { width: 16 depth: 12 num_heads: 2 patch: 8 windows: 2 grid: 8 taken: [3, 6, 9, 12] }
      decoder { depth: 16 num_layers: 2 feedforward: 32 num_queries: 20 num_groups: 3 self_heads: 2 cross_heads: 4 }"""
    path.write_text(
        f"""preset: "rf_detr_nano_coco" model {{ rf_detr {{ {model} }} }}
        train_config {{ batch_size: 2 num_steps: 6 use_bfloat16: false }} train_input_reader{readers}"""
    )
    one, batch = learner(path)
    network = one.state.detector.network
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    one.step(batch)
    moved = {name: float((value.detach() - before[name]).abs().max()) for name, value in network.named_parameters()}
    for block in range(12):
        rate = 1.5e-4 * 0.7**2 * 0.8 ** (14 - (block + 1))
        assert moved[f"backbone.blocks.{block}.fc1.weight"] == pytest.approx(rate, rel=0.02), block
    assert moved["backbone.patches.weight"] == pytest.approx(1.5e-4 * 0.7**2 * 0.8**14, rel=0.02)
    assert moved["backbone.norm.weight"] == pytest.approx(1.5e-4 * 0.7**2, rel=0.02)
    assert moved["decoder.layers.0.linear1.weight"] == pytest.approx(0.7e-4, rel=0.02)
    assert moved["decoder.class_embed.weight"] == pytest.approx(1e-4, rel=0.02)


def test_a_frozen_backbone_stays_as_it_was(rf_detr_config: Path) -> None:
    one, batch = learner(rf_detr_config, r'train_config.freeze_variables="^backbone\\."')
    network = one.state.detector.network
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    for _ in range(2):  # layers before those of boxes, which begin as 0, have a gradient from the second step on
        one.step(batch)
    same = {name for name, value in network.named_parameters() if torch.equal(value, before[name])}
    assert same == {name for name in before if name.startswith("backbone.")}


@pytest.mark.slow
def test_learns_eight_images_by_heart(tmp_path: Path) -> None:
    """AP at an overlap of a half is 0.9 and more on the images that it is trained on, within 400 steps."""
    model = """rf_detr { num_classes: 4
      feature_extractor { width: 96 depth: 4 num_heads: 4 patch: 8 windows: 2 grid: 16 taken: [2, 4] }
      decoder { depth: 64 self_heads: 4 cross_heads: 4 feedforward: 128 num_queries: 60 num_groups: 5 }"""
    metrics = learn_by_heart(model, 5e-4, tmp_path)
    assert metrics["DetectionBoxes_Precision/mAP@.50IOU"] >= 0.9, metrics
