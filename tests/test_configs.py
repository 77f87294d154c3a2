"""The configurations that are shipped: whole, honoured throughout, what their headers say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import boxwright as bw
from boxwright.builders.detector import build_detector
from boxwright.builders.training import build_training
from boxwright.config.load import load_config
from boxwright.config.support import report
from boxwright.data.label_map import load_label_map

ROOT = Path(__file__).parent.parent
PATHS = sorted((ROOT / "configs").glob("*/*.config"))
# Boxes of the papers' tables, and steps and batch of the authors' files.
ANCHORS = {"refinedet320": 6375, "refinedet512": 16320, "ssd300": 8732, "ssd512": 24564}
STEPS = {"voc": (120_000, 32), "coco": (400_000, 32), "refinedet512_resnet101_coco": (540_000, 20)}


def test_all_are_there() -> None:
    names = {path.stem for path in PATHS}
    sizes = {
        f"refinedet{s}_{net}_{data}" for s in (320, 512) for net in ("vgg16", "resnet101") for data in ("voc", "coco")
    }
    small = {"refinedet_mobilenet_v2_shapes", "refinedet_mobilenet_v2_bccd"}
    assert names == sizes | small | {"ssd300_vgg16_voc", "ssd512_vgg16_voc"}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_configuration(path: Path) -> None:
    text = path.read_text()
    header = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    assert f"boxwright train --pipeline_config_path {path.relative_to(ROOT).as_posix()}" in header
    assert "Published" in header
    assert "CVPR 2018" in header or "ECCV 2016" in header
    config = load_config(path)
    assert [str(row) for row in report(config) if row.status.verdict != "honoured"] == []
    with torch.device("meta"):
        network = build_detector(config).network
        model: Any = config.model.refinedet or config.model.ssd  # type: ignore[union-attr]
        size = model.image_resizer.fixed_shape_resizer
        predictions = network(torch.zeros(1, 3, size.height, size.width))
    family = path.stem.split("_")[0]
    if family in ANCHORS:
        assert predictions.class_logits.shape[1] == ANCHORS[family]
        plan = build_training(config)
        steps, batch = STEPS.get(path.stem, STEPS[path.stem.split("_")[-1]])
        assert (plan.num_steps, plan.stream.batch_size) == (steps, batch)
        classes = 80 if "coco" in path.stem else 20
        assert predictions.class_logits.shape[2] == classes + 1


def test_label_map_of_voc() -> None:
    assert len(load_label_map(ROOT / "configs" / "voc_label_map.pbtxt")) == 20


def test_anchors_of_ssd300() -> None:
    """The first of the finest level and the last of all, by the paper's sizes (section 2.2 and the released code)."""
    detector = bw.build_detector(load_config(ROOT / "configs" / "ssd_vgg16" / "ssd300_vgg16_voc.config"))
    anchors = detector.network.anchors([(n, n) for n in (38, 19, 10, 5, 3, 1)], (300, 300))  # type: ignore[operator]
    assert anchors[0][0].tolist() == pytest.approx([4 - 15, 4 - 15, 4 + 15, 4 + 15])
    half = (30 * 60) ** 0.5 / 2
    assert anchors[0][1].tolist() == pytest.approx([4 - half, 4 - half, 4 + half, 4 + half], abs=1e-3)
    wide, high = 264 * 2**0.5 / 2, 264 / 2**0.5 / 2
    assert anchors[5][2].tolist() == pytest.approx([150 - wide, 150 - high, 150 + wide, 150 + high], abs=1e-3)
