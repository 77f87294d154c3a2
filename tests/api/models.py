"""One small detector that finds what it was trained on, trained and exported once for all processes of a test run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from PIL import Image

import boxwright as bw
from boxwright.data.convert import write_tfrecords
from boxwright.data.shapes import ShapesDataset
from tests.made_once import made_once

DATA = ShapesDataset(8, seed=5, size=(96, 96))
# Fewer find too little of the data.
STEPS = 60


@dataclass(frozen=True)
class SmallRun:
    """Where everything is.

    Attributes:
        config: Its pipeline.config.
        folder: The run's folder.
        onnx: The exported file.
        picture: An image file that it was trained on.
    """

    config: Path
    folder: Path
    onnx: Path
    picture: Path


def demo_config(folder: Path, steps: int) -> str:
    """Return the demo's configuration for 96×96 inputs, few layers and data in a folder."""
    text = (resources.files("boxwright") / "assets" / "shapes.config").read_text()
    for name in ("label_map.pbtxt", "train.record-?????-of-00002", "val.record"):
        text = text.replace(f'"{name}"', f'"{folder}/{name}"')
    for old, new in (
        ("num_steps: 1600", f"num_steps: {steps}"),
        ("total_steps: 1600", f"total_steps: {steps}"),
        ("warmup_steps: 60", f"warmup_steps: {min(steps // 2, 10)}"),
        ("learning_rate_base: 0.01\n", "learning_rate_base: 0.018\n"),
        ("height: 128 width: 128", "height: 96 width: 96"),
        ("decay: 0.97", "decay: 0.9"),
        # Half the time to train and to export.
        ("ssd_mobilenet_v2_fpn_keras", "timm/test_resnet.r160_in1k"),
        ("depth_multiplier: 0.5\n      min_depth: 8\n      use_depthwise: true\n", ""),
        ("override_base_feature_extractor_hyperparams: true\n", ""),
        ("additional_layer_depth: 128", "additional_layer_depth: 48"),
        ("num_layers_before_predictor: 2", "num_layers_before_predictor: 1"),
        ("depth: 64", "depth: 48"),
        ("RELU_6", "RELU"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def _make(folder: Path) -> None:
    write_tfrecords(DATA, folder / "train.record", num_shards=2)
    write_tfrecords(DATA, folder / "val.record")
    Image.fromarray(DATA[0].image).save(folder / "picture.png")
    (folder / "pipeline.config").write_text(demo_config(folder, steps=STEPS))
    run = bw.train(folder / "pipeline.config", folder / "run", device="cpu", workers=0, log_every_n=20)
    run.model().export("onnx", folder / "detector.onnx")


@cache
def small_run() -> SmallRun:
    folder = made_once("small-run", _make)
    return SmallRun(folder / "pipeline.config", folder / "run", folder / "detector.onnx", folder / "picture.png")
