"""RF-DETR trains, resumes to the bit, is evaluated and predicts as others do; a batch in parts is the batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import boxwright as bw
from boxwright.data.convert import write_tfrecords
from boxwright.data.shapes import ShapesDataset
from boxwright.weights.export_weights import weights_sha256
from tests.rf_detrs import RF_DETR
from tests.training.test_d_fine import ADAMW, OBJECTS, gradients, learner, with_objects
from tests.training.test_refinedet import run

OWN_INITIALIZERS = True


@pytest.fixture
def rf_detr_config(small_config: Path, tmp_path: Path) -> Path:
    text = small_config.read_text()
    training = text[text.index("train_config {") :]
    start = training.index("optimizer {")
    training = training[:start] + ADAMW + training[training.index("data_augmentation_options") :]
    training = training.replace("num_steps: 6", "num_steps: 6 gradient_clipping_by_norm: 0.1")
    path = tmp_path / "rf_detr.config"
    path.write_text(f"model {{ {RF_DETR} }}\n{training}")
    return path


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_add_up_to_the_batch(rf_detr_config: Path, parts: int) -> None:
    whole, batch = learner(rf_detr_config)
    split, _ = learner(rf_detr_config, f"train_config.gradient_accumulation_steps={parts}")
    once, twice = whole.step(batch), split.step(batch)
    assert len(once.losses) == 5  # three terms, regularization and the total
    assert twice.losses == pytest.approx(once.losses, rel=1e-4)
    first, second = gradients(whole), gradients(split)
    assert first.keys() == second.keys() == {n for n, _ in whole.state.detector.network.named_parameters()}
    for name, gradient in first.items():
        assert torch.allclose(gradient, second[name], rtol=1e-3, atol=2e-5 * float(gradient.abs().max()) + 1e-7), name


@pytest.mark.parametrize("objects", OBJECTS)
@pytest.mark.parametrize("more", [(), ("train_config.use_bfloat16=true",)])
def test_a_step_of_any_objects(rf_detr_config: Path, objects: str, more: tuple[str, ...]) -> None:
    """More objects than queries, too; and without any, every weight has a gradient all the same."""
    one, batch = learner(rf_detr_config, *more)
    report = one.step(with_objects(batch, *OBJECTS[objects]))
    assert all(torch.isfinite(torch.as_tensor(value)) for value in report.losses.values())
    assert [name for name, p in one.state.detector.network.named_parameters() if p.grad is None] == []
    if objects == "none":
        assert report.losses["Loss/l1_loss"] == 0


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
    names = ("circle", "square", "triangle", "star")
    write_tfrecords(ShapesDataset(8, seed=3, size=(128, 128)), tmp_path / "eight.record")
    labels = "".join(f"item {{ id: {number + 1} name: '{name}' }}\n" for number, name in enumerate(names))
    (tmp_path / "label_map.pbtxt").write_text(labels)
    reader = f'label_map_path: "{tmp_path}/label_map.pbtxt" tf_record_input_reader {{ input_path: "{tmp_path}/eight.record" }}'
    rate = """learning_rate { cosine_decay_learning_rate { learning_rate_base: 5e-4 total_steps: 400
      warmup_learning_rate: 0 warmup_steps: 20 } }"""
    path = tmp_path / "eight.config"
    path.write_text(f"""model {{ rf_detr {{ num_classes: 4
      feature_extractor {{ width: 96 depth: 4 num_heads: 4 patch: 8 windows: 2 grid: 16 taken: [2, 4] }}
      decoder {{ depth: 64 self_heads: 4 cross_heads: 4 feedforward: 128 num_queries: 60 num_groups: 5 }}
      image_resizer {{ fixed_shape_resizer {{ height: 128 width: 128 resize_method: BILINEAR_ANTIALIASED }} }} }} }}
      train_config {{ batch_size: 8 num_steps: 400 gradient_clipping_by_norm: 0.1
      optimizer {{ adamw_optimizer {{ weight_decay: 1e-4 {rate} }} use_moving_average: false }} }}
      train_input_reader {{ {reader} }}
      eval_config {{ metrics_set: "coco_detection_metrics" }} eval_input_reader {{ shuffle: false {reader} }}""")
    config = bw.load_config(path)
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, preflight=False, evaluate=False))
    metrics = bw.evaluate(config, tmp_path / "m")
    assert metrics["DetectionBoxes_Precision/mAP@.50IOU"] >= 0.9, metrics
