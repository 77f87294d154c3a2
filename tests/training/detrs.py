"""What every DETR's training is held to: any objects, a batch in parts, and images by heart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import boxwright as bw
from boxwright.base.distributed import ALONE
from boxwright.data.augmentation.transform import Chain
from boxwright.data.batch import Batch
from boxwright.data.convert import write_tfrecords
from boxwright.data.loader import TrainingExamples, training_batches
from boxwright.data.shapes import SHAPES, ShapesDataset
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.training import build_training
from boxwright.training.state import new_state
from boxwright.training.step import Learner
from boxwright.types import Targets

ADAMW = """optimizer { adamw_optimizer { weight_decay: 1e-4
    learning_rate { constant_learning_rate { learning_rate: 1e-3 } } } use_moving_average: false }"""


def write_config(small_config: Path, model: str, path: Path) -> Path:
    """Write the training of a small configuration with another model, AdamW and clipped gradients; return the path."""
    text = small_config.read_text()
    training = text[text.index("train_config {") :]
    start = training.index("optimizer {")
    training = training[:start] + ADAMW + training[training.index("data_augmentation_options") :]
    training = training.replace("num_steps: 6", "num_steps: 6 gradient_clipping_by_norm: 0.1")
    path.write_text(f"model {{ {model} }}\n{training}")
    return path


def learner(path: Path, *overrides: str) -> tuple[Learner, Batch]:
    """Return a learner whose normalization keeps its statistics, so that nothing joins images but losses."""
    config = bw.load_config(path, list(overrides))
    torch.manual_seed(0)
    assert config.train_input_reader is not None
    dataset = build_dataset(config.train_input_reader, "train_input_reader")
    detector = bw.build_detector(config, dataset.categories)
    detector.network.frozen_statistics = ("",)
    detector.train()
    plan = build_training(config, workers=0)
    examples = TrainingExamples(dataset, Chain(), detector.preprocessor.resizer, 0)
    batch = next(iter(training_batches(examples, plan.stream)))
    return Learner(new_state(detector, plan), plan, ALONE), batch


def gradients(one: Learner) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in one.state.detector.network.named_parameters() if p.grad is not None}


def with_objects(batch: Batch, boxes: Tensor, labels: Tensor) -> Batch:
    """Return a batch whose first image has some objects, and whose others have none."""
    count, size = len(boxes), len(batch)
    valid = torch.zeros(size, count, dtype=torch.bool)
    valid[0] = True
    targets = Targets(
        boxes.expand(size, -1, -1) * valid[..., None],
        labels.expand(size, -1) * valid,
        valid.float(),
        valid,
        keys=batch.targets.keys,
    )
    return replace(batch, targets=targets)


OBJECTS = {
    "none": (torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)),
    "one": (torch.tensor([[10.0, 10.0, 30.0, 40.0]]), torch.tensor([2])),
    "of one pixel": (torch.tensor([[10.0, 10.0, 11.0, 11.0]]), torch.tensor([0])),
    "larger than the image": (torch.tensor([[-50.0, -60.0, 200.0, 190.0]]), torch.tensor([3])),
    "300": (torch.rand(300, 4, generator=torch.Generator().manual_seed(0)).sort(1).values * 60, torch.arange(300) % 4),
}


def check_parts(config: Path, parts: int) -> Mapping[str, float]:
    """Check that a batch in parts has the losses and gradients of the whole; return the losses."""
    whole, batch = learner(config)
    split, _ = learner(config, f"train_config.gradient_accumulation_steps={parts}")
    once, twice = whole.step(batch), split.step(batch)
    assert twice.losses == pytest.approx(once.losses, rel=1e-4)
    first, second = gradients(whole), gradients(split)
    assert first.keys() == second.keys() == {n for n, _ in whole.state.detector.network.named_parameters()}
    for name, gradient in first.items():
        assert torch.allclose(gradient, second[name], rtol=1e-3, atol=2e-5 * float(gradient.abs().max()) + 1e-7), name
    return once.losses


def check_step(config: Path, objects: str, *overrides: str) -> Mapping[str, float]:
    """Check that a step with objects has finite losses, and a gradient for every weight; return the losses."""
    one, batch = learner(config, *overrides)
    losses = one.step(with_objects(batch, *OBJECTS[objects])).losses
    assert all(torch.isfinite(torch.as_tensor(value)) for value in losses.values())
    assert [name for name, p in one.state.detector.network.named_parameters() if p.grad is None] == []
    return losses


def learn_by_heart(
    model: str, rate: float, folder: Path, *, reader_fields: str = "", metrics_set: str = '"coco_detection_metrics"'
) -> Mapping[str, float]:
    """Return a model's metrics on eight images that it is trained on 400 times.

    Args:
        model: Its message, still open at the end, of four classes; inputs are of 128 × 128.
        rate: The highest learning rate.
        folder: Where all files go.
        reader_fields: What the readers have besides their label map and records.
        metrics_set: The metrics, as the configuration has them.
    """
    write_tfrecords(ShapesDataset(8, seed=3, size=(128, 128)), folder / "eight.record")
    labels = "".join(f"item {{ id: {number + 1} name: '{name}' }}\n" for number, name in enumerate(SHAPES))
    (folder / "label_map.pbtxt").write_text(labels)
    reader = f"""{reader_fields} label_map_path: "{folder}/label_map.pbtxt"
      tf_record_input_reader {{ input_path: "{folder}/eight.record" }}"""
    schedule = f"""learning_rate {{ cosine_decay_learning_rate {{ learning_rate_base: {rate} total_steps: 400
      warmup_learning_rate: 0 warmup_steps: 20 }} }}"""
    path = folder / "eight.config"
    path.write_text(f"""model {{ {model}
      image_resizer {{ fixed_shape_resizer {{ height: 128 width: 128 resize_method: BILINEAR_ANTIALIASED }} }} }} }}
      train_config {{ batch_size: 8 num_steps: 400 gradient_clipping_by_norm: 0.1
      optimizer {{ adamw_optimizer {{ weight_decay: 1e-4 {schedule} }} use_moving_average: false }} }}
      train_input_reader {{ {reader} }}
      eval_config {{ metrics_set: {metrics_set} }} eval_input_reader {{ shuffle: false {reader} }}""")
    config = bw.load_config(path)
    bw.train(config, folder / "m", bw.RunSettings(workers=0, preflight=False, evaluate=False))
    return bw.evaluate(config, folder / "m")
