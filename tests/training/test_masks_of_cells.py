"""A user's road to masks: COCO JSON of blood cells, whose masks are the ellipses of their boxes, through a whole run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import boxwright as bw
from boxwright.data.voc import VocDataset
from tests.conftest import extra_folder
from tests.evaluation.evaluate import evaluate_detector

ROOT = Path(__file__).parents[2]
CONFIG = "preset:mask_rcnn_mobilenet_v3_fpn_shapes"
_CORNERS = 24


def write_ellipses(source: Path, image_set: str, target: Path, most: int) -> list[str]:
    """Write a COCO file of images of BCCD, each object with its box's ellipse as a polygon; return the classes."""
    from math import cos, pi, sin

    dataset = VocDataset(source, image_set)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(min(most, len(dataset))):
        sample = dataset[number]
        height, width = sample.image.shape[:2]
        images.append({"id": number + 1, "file_name": sample.filename, "height": height, "width": width})
        for box, label in zip(sample.boxes.tolist(), sample.labels.tolist(), strict=True):
            x, y, w, h = box[0], box[1], box[2] - box[0], box[3] - box[1]
            if w <= 1 or h <= 1:
                continue
            angles = [2 * pi * corner / _CORNERS for corner in range(_CORNERS)]
            points = [(x + w / 2 + w / 2 * cos(a), y + h / 2 + h / 2 * sin(a)) for a in angles]
            row = {"id": len(annotations) + 1, "image_id": number + 1, "category_id": label + 1, "iscrowd": 0}
            polygon = [round(value, 2) for point in points for value in point]
            annotations.append(row | {"bbox": [x, y, w, h], "area": w * h * 0.785, "segmentation": [polygon]})
    names = [category.name for category in dataset.categories]
    categories = [{"id": number + 1, "name": name} for number, name in enumerate(names)]
    target.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return names


def settings(folder: Path, data: Path, steps: int) -> list[str]:
    """Point the small Mask R-CNN at the cells: their folder, size and classes."""
    changes = ["model.faster_rcnn.num_classes=3", f"train_config.num_steps={steps}", "train_config.batch_size=4"]
    changes += [f"model.faster_rcnn.image_resizer.fixed_shape_resizer.{side}" for side in ("height=240", "width=320")]
    changes += ["model.faster_rcnn.first_stage_anchor_generator.multiscale_anchor_generator.anchor_scale=6"]
    schedule = "train_config.optimizer.adamw_optimizer.learning_rate.cosine_decay_learning_rate"
    changes += [f"{schedule}.total_steps={steps}", f"{schedule}.warmup_steps={min(steps // 5, 100)}"]
    for name in ("train", "eval"):
        reader = f'{{ annotations: "{folder}/{name}.json" image_folder: "{data}/JPEGImages" }}'
        changes.append(f"{name}_input_reader={{ load_instance_masks: true coco_input_reader {reader} }}")
    return changes


def train_on_cells(data: Path, folder: Path, steps: int, images: int, seconds: float = 0) -> dict[str, float]:
    """Train from scratch and evaluate boxes and masks."""
    write_ellipses(data, "trainval", folder / "train.json", images)
    write_ellipses(data, "test", folder / "eval.json", max(images // 4, 2))
    config = bw.load_config(CONFIG, settings(folder, data, steps))
    run = bw.RunSettings(workers=0, preflight=False, evaluate=False, max_seconds=seconds)
    bw.train(config, folder / "run", run)
    detector, config, _ = bw.restore_detector(folder / "run")
    return evaluate_detector(config, detector).metrics


@pytest.mark.slow  # test_evaluates_masks_and_draws_them trains and evaluates masks
def test_cells_with_masks_are_learnt_from_coco(tmp_path: Path) -> None:
    folder = extra_folder("BOXWRIGHT_DATA")
    if folder is None:
        pytest.skip("BOXWRIGHT_DATA names no folder with bccd/")
    found = train_on_cells(folder / "bccd", tmp_path, steps=3, images=6)
    assert 0 <= found["DetectionMasks_Precision/mAP"] <= 1
    assert found["Loss/BoxClassifierLoss/mask_loss"] > 0
