"""RefineDet trains, resumes, is evaluated and predicts as SSD does; a batch in parts is the batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.base.distributed import ALONE
from boxwright.data.augmentation.transform import Chain
from boxwright.data.batch import Batch
from boxwright.data.convert import write_tfrecords
from boxwright.data.label_map import load_label_map
from boxwright.data.loader import TrainingExamples, training_batches
from boxwright.data.shapes import ShapesDataset
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.training import build_training
from boxwright.training.state import new_state
from boxwright.training.step import Learner, compute_counts
from tests.cli.test_commands import run

OWN_INITIALIZERS = True

NORMED = "conv_hyperparams { activation: RELU batch_norm { decay: 0.9 } }"
MODEL = f"""
model {{ refinedet {{
  num_classes: 4
  image_resizer {{ fixed_shape_resizer {{ height: 64 width: 64 }} }}
  feature_extractor {{ type: "refinedet_mobilenet_v2" depth_multiplier: 0.25 min_depth: 8
    override_base_feature_extractor_hyperparams: true {NORMED} }}
  anchor_generator {{ multiscale_anchor_generator {{ min_level: 3 max_level: 6 anchor_scale: 2
    aspect_ratios: [1.0, 2.0, 0.5] scales_per_octave: 1 }} }}
  anchor_refinement {{ }}
  transfer_connection {{ depth: 32 {NORMED} }}
}} }}
"""


@pytest.fixture
def refinedet_config(small_config: Path, tmp_path: Path) -> Path:
    text = small_config.read_text()
    path = tmp_path / "refinedet.config"
    path.write_text(MODEL + text[text.index("train_config {") :])
    return path


def learner(path: Path, *overrides: str) -> tuple[Learner, Batch]:
    config = bw.load_config(path, list(overrides))
    torch.manual_seed(0)
    assert config.train_input_reader is not None
    dataset = build_dataset(config.train_input_reader, "train_input_reader")
    detector = bw.build_detector(config, dataset.categories).train()
    plan = build_training(config, workers=0)
    examples = TrainingExamples(dataset, Chain(), detector.preprocessor.resizer, 0)
    batch = next(iter(training_batches(examples, plan.stream)))
    return Learner(new_state(detector, plan), plan, ALONE), batch


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_add_up_to_the_batch(refinedet_config: Path, parts: int) -> None:
    """Two divisors, neither known before the last part: they are counted first. Smooth, so that rounding stays that."""
    refinedet_config.write_text(refinedet_config.read_text().replace("activation: RELU", "activation: SWISH"))
    frozen = "model.refinedet.freeze_batchnorm=true"
    whole, batch = learner(refinedet_config, frozen)
    split, _ = learner(refinedet_config, frozen, f"train_config.gradient_accumulation_steps={parts}")
    once, twice = whole.step(batch), split.step(batch)
    assert twice.losses == pytest.approx(once.losses, rel=1e-5)
    compared = 0
    for one, other in zip(
        whole.state.detector.network.parameters(), split.state.detector.network.parameters(), strict=True
    ):
        if one.grad is not None:
            assert other.grad is not None
            assert float((one.grad - other.grad).norm()) <= 1e-5 * float(one.grad.norm()) + 1e-9
            compared += 1
    assert compared > 100


def test_counting_leaves_statistics_alone(refinedet_config: Path) -> None:
    """Normalization learns from each part once, though each is looked at twice."""
    split, batch = learner(refinedet_config, "train_config.gradient_accumulation_steps=2")
    before = [buffer.clone() for buffer in split.state.detector.network.buffers()]
    compute_counts(split.losses, batch.split(2))
    assert all(torch.equal(a, b) for a, b in zip(before, split.state.detector.network.buffers(), strict=True))


@pytest.mark.slow
def test_train_go_on_evaluate_predict(refinedet_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    model_dir = tmp_path / "m"
    shared = ("--config", refinedet_config, "--model_dir", model_dir, "--workers", 0, "--log_every_n", 1)
    assert "evaluation at step 2" in run("train", *shared, "--num_train_steps", 2)
    assert "resuming from" in run("train", *shared, "--num_train_steps", 3, "--no-evaluate")
    log = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    assert {
        "Loss/refinement/localization_loss",
        "Loss/refinement/objectness_loss",
        "Loss/localization_loss",
        "Loss/classification_loss",
        "Loss/total_loss",
    } <= set(log[-1])
    assert run("evaluate", "--model_dir", model_dir, "--out", tmp_path / "e").strip().splitlines()[-2].startswith("AP ")
    image = next((shapes_data / "voc" / "JPEGImages").glob("*.jpg"))
    assert "in 1 image" in run("predict", image, "--model_dir", model_dir, "--out", tmp_path / "p", "--min_score", 0)


@pytest.mark.slow
def test_an_interrupted_run_ends_as_one_that_was_not(refinedet_config: Path, tmp_path: Path) -> None:
    settings = bw.RunSettings(workers=0, preflight=False, evaluate=False, checkpoint_every_n=2)
    bw.train(bw.load_config(refinedet_config, ["train_config.num_steps=4"]), tmp_path / "whole", settings)
    bw.train(bw.load_config(refinedet_config, ["train_config.num_steps=2"]), tmp_path / "parts", settings)
    bw.train(bw.load_config(refinedet_config, ["train_config.num_steps=4"]), tmp_path / "parts", settings)
    whole, parts = (bw.restore_detector(tmp_path / name)[0].state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())


NORMALIZED = (
    "model.refinedet.conv_hyperparams={ batch_norm { decay: 0.9 scale: true } }",
    "model.refinedet.normalize_predictors=true",
)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), NORMALIZED], ids=["plain", "normalized"])
def test_other_classes_keep_what_they_share(refinedet_config: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    bw.train(
        bw.load_config(refinedet_config, ["train_config.num_steps=1", *more]),
        tmp_path / "m",
        bw.RunSettings(workers=0, preflight=False, evaluate=False),
    )
    (tmp_path / "two.pbtxt").write_text("item { id: 1 name: 'star' } item { id: 2 name: 'circle' }")
    config = bw.load_config(
        refinedet_config,
        ["model.refinedet.num_classes=2", f"train_input_reader.label_map_path={tmp_path}/two.pbtxt", *more],
    )
    detector = bw.build_detector(config, load_label_map(tmp_path / "two.pbtxt"))
    report = bw.load_weights(detector, tmp_path / "m", scope="transfer")
    assert "star, circle kept by name" in str(report)
    assert "refinement.classes.0.0.weight" in report.restored
    assert not report.kept
    old = bw.restore_detector(tmp_path / "m")[0]
    inputs, _ = old.preprocess(torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(0)) * 255)
    with torch.no_grad():
        before, after = (one.eval().predict(inputs).detection.class_logits for one in (old, detector))
    assert old.categories is not None
    same = [0] + [1 + one.label for name in ("star", "circle") if (one := old.categories.by_name(name)) is not None]
    assert len(same) == 3
    torch.testing.assert_close(after, before[..., same], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_step_of_each_variant(refinedet_config: Path) -> None:
    """Finite losses, a penalty where one is set, and weights that move: biases and gains by the penalty too."""
    variants: dict[str, tuple[str, ...]] = {
        "face": (
            "model.refinedet.feature_extractor.min_level=2",
            "model.refinedet.image_resizer={ fixed_shape_resizer { height: 128 width: 128 } }",
            "model.refinedet.anchor_generator={ multiscale_anchor_generator { min_level: 2 max_level: 7 "
            "anchor_scale: 4 aspect_ratios: 1.0 scales_per_octave: 1 } }",
        ),
        "heads": ("model.refinedet.convolutional_body={ depth: 16 }",),
        # No convolution has a bias then.
        "normalized": (*NORMALIZED, "train_config.bias_grad_multiplier=2"),
        "penalty": ("model.refinedet.regularizer={ l2_regularizer { weight: 0.5 } }", *NORMALIZED),
    }
    penalties = {}
    for name, overrides in variants.items():
        one, batch = learner(refinedet_config, *overrides)
        network = one.state.detector.network
        before = {key: value.clone() for key, value in network.state_dict().items()}
        squares = sum(float(p.detach().double().square().sum()) for p in network.parameters() if p.requires_grad)
        losses = one.step(batch).losses
        assert all(np.isfinite(value) for value in losses.values()), name
        after = network.state_dict()
        moved = {key for key, value in after.items() if not torch.equal(value, before[key])}
        learning = {key for key, value in network.named_parameters() if value.requires_grad}
        assert len(moved & learning) > 0.8 * len(learning), name
        penalties[name] = losses["Loss/regularization_loss"]
        if name == "penalty":
            assert penalties[name] == pytest.approx(0.25 * squares, rel=1e-4)
            # No box lies on some levels: what is not 0 there moves by the penalty alone.
            assert moved >= {key for key in learning if before[key].any()}
    assert penalties["penalty"] > 100 * penalties["normalized"]


@pytest.mark.slow
def test_two_processes_are_one_with_the_whole_batch(refinedet_config: Path, tmp_path: Path) -> None:
    """Both steps' divisors are counted over all processes."""
    text = refinedet_config.read_text().replace("activation: RELU", "activation: SWISH")
    refinedet_config.write_text(text.replace("batch_norm {", "sync_batch_norm {"))
    logs = []
    for count in (1, 2):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        command += [
            "-m",
            "boxwright",
            "train",
            "--config",
            str(refinedet_config),
            "--model_dir",
            str(tmp_path / str(count)),
        ]
        command += ["--num_train_steps", "1", "--log_every_n", "1", "--workers", "0", "--no-evaluate"]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        last = json.loads((tmp_path / str(count) / "metrics.jsonl").read_text().splitlines()[-1])
        logs.append({name: value for name, value in last.items() if name.startswith("Loss/")})
    assert len(logs[0]) == 6
    assert logs[1] == pytest.approx(logs[0], rel=1e-5)


@pytest.mark.slow
def test_learns_eight_images_by_heart(refinedet_config: Path, tmp_path: Path) -> None:
    """Near-zero loss and AP above 0.95 on the images that it is trained on."""
    write_tfrecords(ShapesDataset(8, seed=3, size=(96, 96)), tmp_path / "eight.record")
    reader = f'label_map_path: "{tmp_path}/label_map.pbtxt" tf_record_input_reader {{ input_path: "{tmp_path}/eight.record" }}'
    rate = """learning_rate { cosine_decay_learning_rate { learning_rate_base: 0.003 total_steps: 400
      warmup_learning_rate: 0.0003 warmup_steps: 20 } }"""
    model = MODEL.replace("height: 64 width: 64", "height: 128 width: 128").replace("0.25 min_depth", "0.5 min_depth")
    # Suppression as in the other detectors' tests: shapes of one class overlap by more than 0.45.
    model = model.replace(
        "anchor_refinement { }",
        """anchor_refinement { } post_processing { score_converter: SOFTMAX batch_non_max_suppression {
        score_threshold: 0.05 iou_threshold: 0.6 max_detections_per_class: 20 max_total_detections: 50 } }""",
    )
    path = tmp_path / "eight.config"
    path.write_text(f"""{model} train_config {{ batch_size: 8 num_steps: 400 gradient_clipping_by_norm: 10
      optimizer {{ adamw_optimizer {{ weight_decay: 0 {rate} }} use_moving_average: false }} }}
      train_input_reader {{ {reader} }} eval_input_reader {{ shuffle: false {reader} }}""")
    config = bw.load_config(path)
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, preflight=False, evaluate=False))
    last = json.loads((tmp_path / "m" / "metrics.jsonl").read_text().splitlines()[-1])
    metrics = bw.evaluate(config, tmp_path / "m")
    found = {"loss": last["Loss/total_loss"], "AP": metrics["DetectionBoxes_Precision/mAP"]}
    assert found["loss"] < 0.15, found
    assert found["AP"] > 0.95, found
