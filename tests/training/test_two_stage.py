"""A small Mask R-CNN through a run: it resumes, shares, splits, freezes and keeps classes like any detector."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.config.load import dump_message
from boxwright.data.label_map import load_label_map
from boxwright.weights.store import read_checkpoint
from tests.training.test_distributed import finish, lines, torchrun
from tests.two_stage_models import FASTER_RCNN, MASK_RCNN

OWN_INITIALIZERS = True

QUIET = {"workers": 0, "preflight": False, "evaluate": False}


def configuration(shapes_data: Path, folder: Path, model: str = MASK_RCNN, *overrides: str) -> Path:
    """Write a configuration on the made-up shapes, whose records have masks."""
    readers = "\n".join(
        f"""{name}_input_reader {{ load_instance_masks: true mask_type: PNG_MASKS shuffle: false
        label_map_path: "{shapes_data}/label_map.pbtxt" tf_record_input_reader {{ input_path: "{shapes_data}/{files}" }} }}"""
        for name, files in (("train", "train.record-?????-of-00002"), ("eval", "val.record"))
    )
    text = f"""model {{ {model} }}
    train_config {{ batch_size: 2 num_steps: 4 gradient_clipping_by_norm: 1
      optimizer {{ momentum_optimizer {{ learning_rate {{ constant_learning_rate {{ learning_rate: 0.005 }} }} }} }}
      data_augmentation_options {{ random_horizontal_flip {{ }} }} }}
    eval_config {{ metrics_set: ["coco_detection_metrics", "coco_mask_metrics"] num_visualizations: 2 }}
    {readers}"""
    path = folder / "pipeline.config"
    path.write_text(text)
    path.write_text(dump_message(bw.load_config(path, overrides)))
    return path


def weights(folder: Path, step: int = 4) -> dict[str, torch.Tensor]:
    network: dict[str, torch.Tensor] = read_checkpoint(folder / f"ckpt-{step}.pt")["network"]
    return network


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits(shapes_data: Path, tmp_path: Path) -> None:
    """Though proposals are sampled by chance, masks and all."""
    path = configuration(shapes_data, tmp_path)
    bw.train(bw.load_config(path), tmp_path / "whole", bw.RunSettings(**QUIET))
    bw.train(bw.load_config(path, ["train_config.num_steps=2"]), tmp_path / "parts", bw.RunSettings(**QUIET))
    bw.train(bw.load_config(path), tmp_path / "parts", bw.RunSettings(**QUIET))
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())


@pytest.mark.slow
def test_evaluates_masks_and_draws_them(shapes_data: Path, tmp_path: Path) -> None:
    path = configuration(shapes_data, tmp_path)
    bw.train(bw.load_config(path), tmp_path / "m", bw.RunSettings(workers=0, preflight=False, log_every_n=1))
    rows = [json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text().splitlines()]
    terms = {name for row in rows for name in row if name.startswith("Loss/")}
    assert {"Loss/RPNLoss/objectness_loss", "Loss/BoxClassifierLoss/mask_loss"} <= terms
    detector, _, _ = bw.restore_detector(tmp_path / "m")
    from boxwright.evaluation.write import ImageResults, write_evaluation
    from tests.evaluation.evaluate import evaluate_detector

    with ImageResults(tmp_path / "eval") as results:
        evaluation = evaluate_detector(bw.load_config(path), detector, keep=results.add)
        write_evaluation(evaluation, results, tmp_path / "eval")
    assert "DetectionMasks_Precision/mAP" in evaluation.metrics
    assert "Loss/BoxClassifierLoss/mask_loss" in evaluation.metrics
    found = json.loads((tmp_path / "eval" / "detections.json").read_text())
    assert found
    from pycocotools import mask as coco_mask

    for row in found[:5]:
        code = row["segmentation"]
        mask = coco_mask.decode({"size": code["size"], "counts": code["counts"].encode()})
        assert mask.shape == (64, 80)
        x, y, width, height = row["bbox"]
        ys, xs = np.nonzero(mask)
        if len(ys):
            assert x - 1 <= xs.min()
            assert xs.max() <= x + width + 1
            assert y - 1 <= ys.min()
            assert ys.max() <= y + height + 1


@pytest.mark.slow
def test_two_processes_share_a_batch(shapes_data: Path, tmp_path: Path) -> None:
    """Every sampled proposal is one of its image's, so that only chance differs: without it losses are equal."""
    everything = ["model.faster_rcnn.first_stage_minibatch_size=100000", "model.faster_rcnn.second_stage_batch_size=32"]
    everything += ["model.faster_rcnn.second_stage_balance_fraction=1.0", "train_config.num_steps=2"]
    path = configuration(shapes_data, tmp_path, MASK_RCNN, *everything)
    finish(torchrun(2, path, tmp_path / "two", "--no-evaluate"))
    bw.train(bw.load_config(path), tmp_path / "one", bw.RunSettings(**QUIET, log_every_n=1))
    for first, second in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        for name in (name for name in first if name.startswith("Loss/")):
            assert second[name] == pytest.approx(first[name], rel=2e-3, abs=1e-5), name


@pytest.mark.slow
def test_a_batch_in_parts_is_the_batch(shapes_data: Path, tmp_path: Path) -> None:
    everything = ["model.faster_rcnn.first_stage_minibatch_size=100000", "model.faster_rcnn.second_stage_batch_size=32"]
    everything += ["model.faster_rcnn.second_stage_balance_fraction=1.0", "train_config.num_steps=1"]
    path = configuration(shapes_data, tmp_path, MASK_RCNN, *everything)
    for parts in (1, 2):
        config = bw.load_config(path, [f"train_config.gradient_accumulation_steps={parts}"])
        bw.train(config, tmp_path / str(parts), bw.RunSettings(**QUIET, log_every_n=1))
    whole, parted = lines(tmp_path / "1")[0], lines(tmp_path / "2")[0]
    for name in (name for name in whole if name.startswith("Loss/")):
        assert parted[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-6), name


def test_freezing_keeps_what_is_named(shapes_data: Path, tmp_path: Path) -> None:
    path = configuration(shapes_data, tmp_path, FASTER_RCNN, "train_config.freeze_variables=['rpn', 'neck']")
    torch.manual_seed(0)
    bw.train(bw.load_config(path, ["train_config.num_steps=1"]), tmp_path / "m", bw.RunSettings(**QUIET))
    bw.train(bw.load_config(path), tmp_path / "m", bw.RunSettings(**QUIET))
    before, after = weights(tmp_path / "m", 1), weights(tmp_path / "m", 4)
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"backbone", "second"}


@pytest.mark.slow
def test_classes_are_kept_by_name(shapes_data: Path, tmp_path: Path) -> None:
    """Logits, boxes and masks of a class that both have; the proposals' network as it is."""
    path = configuration(shapes_data, tmp_path)
    bw.train(bw.load_config(path, ["train_config.num_steps=1"]), tmp_path / "m", bw.RunSettings(**QUIET))
    names = ["moon", "star", "circle"]
    text = "".join(f"item {{ id: {number + 1} name: '{name}' }}\n" for number, name in enumerate(names))
    (tmp_path / "other.pbtxt").write_text(text)
    config = bw.load_config(path, ["model.faster_rcnn.num_classes=3"])
    detector = bw.build_detector(config, load_label_map(tmp_path / "other.pbtxt"))
    report = bw.load_weights(detector, tmp_path / "m", scope="transfer")
    assert "classes: star, circle kept by name; moon start fresh" in str(report)
    old, new = weights(tmp_path / "m", 1), detector.network.state_dict()
    theirs = ["circle", "square", "triangle", "star"]
    for label, name in ((1, "star"), (2, "circle")):
        same = theirs.index(name)
        classes = "second.head.classes.0.weight"
        assert torch.equal(new[classes][1 + label], old[classes][1 + same])
        boxes = "second.head.boxes.0.weight"
        assert torch.equal(new[boxes].view(3, 4, -1)[label], old[boxes].view(4, 4, -1)[same])
        assert torch.equal(new["masks.head.predict.weight"][label], old["masks.head.predict.weight"][same])
    assert torch.equal(new["second.head.classes.0.weight"][0], old["second.head.classes.0.weight"][0]), "background"
    assert torch.equal(new["rpn.head.convolve.0.weight"], old["rpn.head.convolve.0.weight"])


@pytest.mark.slow
def test_half_precision_learns(shapes_data: Path, tmp_path: Path) -> None:
    path = configuration(shapes_data, tmp_path, MASK_RCNN, "train_config.use_bfloat16=true")
    bw.train(bw.load_config(path), tmp_path / "m", bw.RunSettings(**QUIET, log_every_n=1))
    assert all(np.isfinite(row["Loss/total_loss"]) for row in lines(tmp_path / "m"))


def test_what_is_not_finite_stops_the_run(shapes_data: Path, tmp_path: Path) -> None:
    rate = "train_config.optimizer.momentum_optimizer.learning_rate.constant_learning_rate.learning_rate=1e30"
    path = configuration(shapes_data, tmp_path, MASK_RCNN, rate, "train_config.num_steps=20")
    with pytest.raises(bw.TrainingError, match="is not finite"):
        bw.train(
            bw.load_config(path, ["train_config.gradient_clipping_by_norm=0"]), tmp_path / "m", bw.RunSettings(**QUIET)
        )


@pytest.mark.slow
def test_learns_a_handful_of_pictures(shapes_data: Path, tmp_path: Path) -> None:
    changes = [
        "train_config.num_steps=1000",
        "train_config.batch_size=4",
        "model.faster_rcnn.add_groundtruth_boxes=true",
    ]
    changes += ["model.faster_rcnn.feature_extractor.batch_norm_trainable=true"]
    path = configuration(shapes_data, tmp_path, MASK_RCNN, *changes)
    rate = "cosine_decay_learning_rate { learning_rate_base: 0.001 total_steps: 1000 warmup_steps: 50 }"
    optimizer = f"train_config.optimizer={{ adamw_optimizer {{ learning_rate {{ {rate} }} }} }}"
    config = bw.load_config(path, [optimizer])
    bw.train(config, tmp_path / "m", bw.RunSettings(**QUIET))
    from boxwright.evaluation.settings import EvaluationSettings
    from tests.evaluation.evaluate import evaluate_detector

    detector, _, _ = bw.restore_detector(tmp_path / "m")
    settings = EvaluationSettings(workers=0, eval_on_train_data=True, sample_1_of_n_eval_examples=1)
    found = evaluate_detector(config, detector, settings).metrics
    assert found["DetectionBoxes_Precision/mAP@.50IOU"] > 0.8
    # Masks of stars a few pixels wide are coarse.
    assert found["DetectionMasks_Precision/mAP@.50IOU"] > 0.6
