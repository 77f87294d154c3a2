"""RF-DETR learns masks as it learns boxes: in parts, of any objects, in one go or two; masks are evaluated and drawn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pycocotools import mask as coco_mask

import boxwright as bw
from boxwright.base.errors import DataError
from boxwright.pipeline.training import build_training
from boxwright.types.masks import InstanceMasks
from boxwright.weights.export_weights import weights_sha256
from tests.cli.test_commands import run
from tests.rf_detrs import RF_DETR_MASKS
from tests.training.detrs import OBJECTS, check_parts, learn_by_heart, learner, with_objects, write_config

OWN_INITIALIZERS = True


@pytest.fixture
def config(small_config: Path, tmp_path: Path) -> Path:
    path = write_config(small_config, RF_DETR_MASKS, tmp_path / "masks.config")
    text = path.read_text()
    for reader in ("train_input_reader {", "eval_input_reader {"):
        text = text.replace(reader, f"{reader} load_instance_masks: true mask_type: PNG_MASKS")
    metrics = 'eval_config { metrics_set: ["coco_detection_metrics", "coco_mask_metrics"] '
    path.write_text(text.replace("eval_config {", metrics))
    return path


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_add_up_to_the_batch(config: Path, parts: int) -> None:
    """Points are drawn for each image from its own key."""
    losses = check_parts(config, parts)
    assert losses["Loss/mask_loss"] > 0
    assert losses["Loss/dice_loss"] > 0


@pytest.mark.parametrize("objects", OBJECTS)
def test_a_step_of_any_objects(config: Path, objects: str) -> None:
    """More objects than queries, too; and without any, every weight of the mask head has a gradient all the same."""
    one, batch = learner(config)
    batch = with_objects(batch, *OBJECTS[objects])
    boxes = batch.targets.boxes[0]
    planes = np.zeros((len(boxes), 64, 64), np.uint8)
    for plane, (left, top, right, bottom) in zip(planes, boxes.int().clamp(min=0).tolist(), strict=True):
        plane[top:bottom, left:right] = 1
    others = [np.zeros((0, 64, 64), np.uint8)] * (len(batch) - 1)
    masks = InstanceMasks.stack([planes, *others], len(boxes), (64, 64))
    losses = one.step(replace(batch, targets=replace(batch.targets, masks=masks))).losses
    assert all(torch.isfinite(torch.as_tensor(value)) for value in losses.values())
    assert [name for name, p in one.state.detector.network.named_parameters() if p.grad is None] == []
    assert (losses["Loss/mask_loss"] > 0) == (objects != "none")


def test_objects_without_masks_do_not_count(config: Path) -> None:
    """Weights of masks are those of the records; and a batch without masks is an error that names the field."""
    one, batch = learner(config)
    assert batch.targets.masks is not None
    nothing = replace(batch, targets=replace(batch.targets, mask_weights=torch.zeros_like(batch.targets.weights)))
    losses = one.step(nothing).losses
    assert (losses["Loss/mask_loss"], losses["Loss/dice_loss"]) == (0, 0)
    assert losses["Loss/l1_loss"] > 0
    with pytest.raises(DataError, match="set load_instance_masks and mask_type"):
        one.step(replace(batch, targets=replace(batch.targets, masks=None)))


def test_readers_without_masks_are_refused(config: Path) -> None:
    without = bw.load_config(config, ["train_input_reader.load_instance_masks=false"])
    with pytest.raises(bw.ConfigError, match=r"train_input_reader.load_instance_masks.*the detector learns masks"):
        build_training(without, workers=0)


def test_train_go_on_evaluate_predict(config: Path, shapes_data: Path, tmp_path: Path) -> None:
    """In one go and in two it ends with the same bits; metrics and files have masks in the images' sizes."""
    folders = tmp_path / "whole", tmp_path / "parts"
    shared = ("--config", config, "--workers", 0, "--log_every_n", 1, "--no-evaluate")
    run("train", *shared, "--model_dir", folders[0], "--num_train_steps", 4)
    run("train", *shared, "--model_dir", folders[1], "--num_train_steps", 2)
    run("train", *shared, "--model_dir", folders[1], "--num_train_steps", 4)
    digests = [weights_sha256(bw.load(folder).detector) for folder in folders]
    assert digests[0] == digests[1]
    metrics = bw.evaluate(config, folders[1])
    assert 0 <= metrics["DetectionMasks_Precision/mAP"] <= 1
    assert metrics["Loss/mask_loss"] > 0
    image = next((shapes_data / "voc" / "JPEGImages").glob("*.jpg"))
    result = bw.load(folders[1])(image, conf=0.0)
    assert result.masks is not None
    run("predict", image, "--model_dir", folders[1], "--min_score", 0, "--out", tmp_path / "p")
    rows = json.loads((tmp_path / "p" / "detections.json").read_text())
    assert len(rows) == len(result)
    for row, mask in zip(rows, result.masks, strict=True):
        code = row["segmentation"]
        decoded = coco_mask.decode({"size": code["size"], "counts": code["counts"].encode()})
        assert np.array_equal(decoded, mask)


@pytest.mark.slow
def test_learns_masks_of_eight_images_by_heart(tmp_path: Path) -> None:
    """Masks are as good as boxes on the images that it is trained on."""
    model = """rf_detr { num_classes: 4
      feature_extractor { width: 96 depth: 4 num_heads: 4 patch: 8 windows: 2 grid: 16 taken: [2, 4] }
      decoder { depth: 64 self_heads: 4 cross_heads: 4 feedforward: 128 num_queries: 60 num_groups: 5 } masks { }"""
    metrics = learn_by_heart(
        model,
        5e-4,
        tmp_path,
        reader_fields="load_instance_masks: true mask_type: PNG_MASKS",
        metrics_set='["coco_detection_metrics", "coco_mask_metrics"]',
    )
    assert metrics["DetectionMasks_Precision/mAP@.50IOU"] >= 0.85, metrics
