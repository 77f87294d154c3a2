"""CenterNet trains, resumes, is evaluated and predicts as SSD does; a batch in parts is the batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import boxwright as bw
from boxwright.base.distributed import ALONE
from boxwright.data.augmentation.transform import Chain
from boxwright.data.batch import Batch
from boxwright.data.convert import write_tfrecords
from boxwright.data.loader import TrainingExamples, training_batches
from boxwright.data.shapes import ShapesDataset
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.training import build_training
from boxwright.training.state import new_state
from boxwright.training.step import Learner
from tests.center_nets import CENTER_NET, KEYPOINT_LABEL_MAP, with_every_task
from tests.cli.test_commands import run

OWN_INITIALIZERS = True


@pytest.fixture
def center_net_config(small_config: Path, tmp_path: Path) -> Path:
    text = small_config.read_text()
    path = tmp_path / "center_net.config"
    path.write_text(f"model {{ {CENTER_NET} }}" + text[text.index("train_config {") :])
    return path


def learner(path: Path, *overrides: str) -> tuple[Learner, Batch]:
    config = bw.load_config(path, list(overrides))
    torch.manual_seed(0)
    assert config.train_input_reader is not None
    # The records have no keypoints; tests add them to the batch.
    reader = config.train_input_reader.replaced(num_keypoints=0)
    dataset = build_dataset(reader, "train_input_reader")
    detector = bw.build_detector(config, dataset.categories).train()
    for module in detector.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    detector.network.frozen_statistics = ("",)
    plan = build_training(config, workers=0)
    examples = TrainingExamples(dataset, Chain(), detector.preprocessor.resizer, 0)
    batch = next(iter(training_batches(examples, plan.stream)))
    return Learner(new_state(detector, plan), plan, ALONE), batch


def with_keypoints(batch: Batch) -> Batch:
    """Give each object a point at the top, at the bottom and in the corner of its box."""
    low, high = batch.targets.boxes[..., :2], batch.targets.boxes[..., 2:]
    top = torch.stack([(low[..., 0] + high[..., 0]) / 2, low[..., 1]], -1)
    bottom = torch.stack([(low[..., 0] + high[..., 0]) / 2, high[..., 1]], -1)
    return replace(batch, targets=replace(batch.targets, keypoints=torch.stack([top, bottom, low], 2)))


@pytest.mark.slow_cases("4")
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_add_up_to_the_batch(center_net_config: Path, parts: int, tmp_path: Path) -> None:
    """Each task has a divisor of its own, and none is known before the last part."""
    (tmp_path / "keypoints.pbtxt").write_text(KEYPOINT_LABEL_MAP)
    text = center_net_config.read_text().replace(CENTER_NET, with_every_task(tmp_path / "keypoints.pbtxt"))
    center_net_config.write_text(
        text.replace(
            "train_input_reader {",
            "train_input_reader { load_instance_masks: true mask_type: PNG_MASKS num_keypoints: 3",
            1,
        )
    )
    whole, batch = learner(center_net_config)
    split, _ = learner(center_net_config, f"train_config.gradient_accumulation_steps={parts}")
    batch = with_keypoints(batch)
    once, twice = whole.step(batch), split.step(batch)
    assert len(once.losses) > 10
    assert twice.losses == pytest.approx(once.losses, rel=1e-4)


def has_average_precision(output: str) -> bool:
    """Return whether average precision is printed, before what comes next."""
    return output.strip().splitlines()[-2].startswith("AP ")


def test_train_go_on_evaluate_predict(center_net_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    # Of few layers, and a part of the images is evaluated.
    text = center_net_config.read_text()
    few = text.replace('"mobilenet_v2_fpn" depth_multiplier: 0.1', '"timm/test_resnet.r160_in1k"')
    assert few != text
    center_net_config.write_text(few)
    model_dir, some = tmp_path / "m", ("--sample_1_of_n_eval_examples", 6)
    shared = ("--config", center_net_config, "--model_dir", model_dir, "--workers", 0, "--log_every_n", 1)
    assert "evaluation at step 2" in run("train", *shared, "--num_train_steps", 2)
    assert "resuming from" in run("train", *shared, "--num_train_steps", 3, "--no-evaluate")
    log = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    assert {"Loss/object_center", "Loss/box/scale", "Loss/box/offset", "Loss/total_loss"} <= set(log[-1])
    assert has_average_precision(run("evaluate", "--model_dir", model_dir, "--out", tmp_path / "e", *some))
    image = next((shapes_data / "voc" / "JPEGImages").glob("*.jpg"))
    predict = ("predict", image, "--model_dir", model_dir, "--min_score", 0, "--out")
    for number, more in enumerate(((), ("--tile", 48), ("--multi_scale", "refinedet320-voc"))):
        assert "in 1 image" in run(*predict, tmp_path / f"p{number}", *more)
        assert json.loads((tmp_path / f"p{number}" / "detections.json").read_text())
    scales = ("--multi_scale", "refinedet320-voc")
    evaluated = run("evaluate", "--model_dir", model_dir, "--out", tmp_path / "s", *scales, *some)
    assert has_average_precision(evaluated)


@pytest.mark.slow
def test_learns_eight_images_by_heart(center_net_config: Path, tmp_path: Path) -> None:
    """AP above 0.95 on the images that it is trained on."""
    write_tfrecords(ShapesDataset(8, seed=3, size=(96, 96)), tmp_path / "eight.record")
    reader = f'label_map_path: "{tmp_path}/label_map.pbtxt" tf_record_input_reader {{ input_path: "{tmp_path}/eight.record" }}'
    rate = """learning_rate { cosine_decay_learning_rate { learning_rate_base: 0.004 total_steps: 300
      warmup_learning_rate: 0.0004 warmup_steps: 20 } }"""
    # Whose normalization has statistics of a few steps; MobileNet's are of thousands.
    model = CENTER_NET.replace('"mobilenet_v2_fpn" depth_multiplier: 0.1', '"hourglass_10" channel_stds: [60, 60, 60]')
    model = model.replace("height: 64 width: 96", "height: 96 width: 96")
    path = tmp_path / "eight.config"
    path.write_text(f"""model {{ {model} }} train_config {{ batch_size: 8 num_steps: 300 gradient_clipping_by_norm: 10
      optimizer {{ adamw_optimizer {{ weight_decay: 0 {rate} }} use_moving_average: false }} }}
      train_input_reader {{ {reader} }} eval_input_reader {{ shuffle: false {reader} }}""")
    config = bw.load_config(path)
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, evaluate=False))
    metrics = bw.evaluate(config, tmp_path / "m")
    assert metrics["DetectionBoxes_Precision/mAP"] > 0.95, metrics
