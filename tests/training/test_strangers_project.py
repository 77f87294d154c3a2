"""A stranger's project as it is: an archive of the model zoo, a configuration written on Windows, three commands."""

from __future__ import annotations

import json
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from boxwright.base.crc import masked_crc
from boxwright.base.files import write_whole
from boxwright.base.varint import write_varint
from boxwright.cli.main import app
from boxwright.data.convert import write_tfrecords
from boxwright.data.image_io import encode_png
from boxwright.data.shapes import ShapesDataset
from boxwright.weights.tensorflow.bundle import write_bundle
from boxwright.weights.tensorflow.sstable import read_table
from tests.conftest import GOLDEN, extra_folder
from tests.golden.weights import weight

Arrays = Mapping[str, NDArray[Any]]
RUNNER = CliRunner()

WINDOWS = r"""
train_config {{
  batch_size: 2
  num_steps: 5
  optimizer {{ {optimizer} use_moving_average: false }}
  fine_tune_checkpoint: "C:\\Users\\me\\Tensorflow\\workspace\\pre-trained-models\\{checkpoint}"
  {kind}
  data_augmentation_options {{ random_horizontal_flip {{ }} }}
}}
train_input_reader {{
  label_map_path: "Tensorflow\\workspace\\annotations\\label_map.pbtxt"
  tf_record_input_reader {{ input_path: "Tensorflow\\workspace\\annotations\\train.record" }}
}}
eval_config {{ metrics_set: "coco_detection_metrics" use_moving_averages: false }}
eval_input_reader {{
  label_map_path: "Tensorflow\\workspace\\annotations\\label_map.pbtxt"
  shuffle: false
  num_epochs: 1
  tf_record_input_reader {{ input_path: "Tensorflow\\workspace\\annotations\\test.record" }}
}}
"""
MOMENTUM = """momentum_optimizer { learning_rate { cosine_decay_learning_rate {
  learning_rate_base: 0.01 total_steps: 50 warmup_learning_rate: 0.001 warmup_steps: 2 } }
  momentum_optimizer_value: 0.9 }"""
RMS_PROP = """rms_prop_optimizer { learning_rate { exponential_decay_learning_rate {
  initial_learning_rate: 0.004 decay_steps: 800720 decay_factor: 0.95 } }
  momentum_optimizer_value: 0.9 decay: 0.9 epsilon: 1.0 }"""


def compress(path: Path) -> None:
    """Write a checkpoint's index anew as the zoo's are: one block, compressed by Snappy, in literals."""
    entries = b"".join(
        b"\0" + write_varint(len(key)) + write_varint(len(value)) + key + value
        for key, value in sorted(read_table(path.read_bytes(), "index").items())
    )
    out = bytearray()

    def append(block: bytes, how: int) -> bytes:
        if how:
            pieces = [block[start : start + 60000] for start in range(0, len(block), 60000)]
            literals = b"".join(b"\xf4" + struct.pack("<H", len(piece) - 1) + piece for piece in pieces)
            block = write_varint(len(block)) + literals
        handle = write_varint(len(out)) + write_varint(len(block))
        out.extend(block + bytes([how]) + struct.pack("<I", masked_crc(block + bytes([how]))))
        return handle

    end = struct.pack("<II", 0, 1)
    data = append(entries + end, 1)
    meta = append(end, 0)
    index = append(b"\0\x01" + write_varint(len(data)) + b"\xff" + data + end, 1)
    path.write_bytes(bytes(out) + (meta + index).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57))


def zoo(folder: Path, name: str, arrays: Arrays, tensorflow: int) -> None:
    """Write an archive as the zoo has it, and unpack it as its user did."""
    inside = folder / "made" / name
    prefix = inside / "checkpoint" / "ckpt-0" if tensorflow == 2 else inside / "model.ckpt"
    write_bundle(prefix, arrays, {} if tensorflow == 2 else None)
    compress(prefix.with_name(f"{prefix.name}.index"))
    (inside / "pipeline.config").write_text("model { }")
    archive = folder / f"{name}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(inside, name)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


def data(folder: Path, classes: int) -> None:
    write_tfrecords(ShapesDataset(8, seed=1, size=(96, 128)), folder / "train.record")
    write_tfrecords(ShapesDataset(4, seed=2, size=(96, 128)), folder / "test.record")
    names = (folder / "label_map.pbtxt").read_text()
    extra = "".join(
        f'item {{ id: {number} name: "other {number}" }}\n' for number in range(names.count("id:") + 1, classes + 1)
    )
    (folder / "label_map.pbtxt").write_text(names + extra)


def run(*arguments: object) -> str:
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def three_commands(project: Path, config: Path, steps: int, said: str) -> str:
    """Train, evaluate, predict from the project's root, as its README would say."""
    output = run(
        "train",
        "--pipeline_config_path",
        config,
        "--model_dir",
        "models/mine",
        "--num_train_steps",
        steps,
        "--workers",
        0,
    )
    assert "does not exist; " in output
    assert said in output
    assert (project / "models" / "mine" / f"ckpt-{steps}.pt").is_file()
    run("evaluate", "--model_dir", "models/mine", "--workers", 0)
    metrics = json.loads((project / "models" / "mine" / "eval" / "metrics.json").read_text())
    assert "DetectionBoxes_Precision/mAP" in json.dumps(metrics)
    write_whole(project / "a.png", encode_png(ShapesDataset(1, seed=3, size=(96, 128))[0].image))
    run("predict", "a.png", "--checkpoint", "models/mine", "--out", "found", "--min_score", 0)
    assert json.loads((project / "found" / "detections.json").read_text())
    return output


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(tensorflow: int) -> tuple[str, Arrays]:
    if tensorflow == 2:
        from boxwright.weights.tensorflow.bundle import Bundle

        bundle = Bundle(GOLDEN / "checkpoint" / "tf2_checkpoint")
        text = json.loads((GOLDEN / "checkpoint" / "model.json").read_text())["model_text"]
        return text, {key: bundle[key] for key in bundle if "OPTIMIZER_SLOT" not in key}
    row = json.loads((GOLDEN / "tf1" / "embedded_ssd_mobilenet_v1_coco.json").read_text())
    return row["model_text"], {name: weight(name, tuple(shape), row["gain"]) for name, shape in row["variables"]}


@pytest.mark.slow_cases('2-optimizer0-zoo\\\\\\\\checkpoint\\\\\\\\ckpt-0-fine_tune_checkpoint_type: "detection"-')
@pytest.mark.parametrize(
    ("tensorflow", "optimizer", "checkpoint", "kind", "said"),
    [
        (2, MOMENTUM, r"zoo\\checkpoint\\ckpt-0", 'fine_tune_checkpoint_type: "detection"', ""),
        (
            1,
            RMS_PROP,
            r"zoo\\model.ckpt",
            "from_detection_checkpoint: true",
            "is TensorFlow 1's, whose meaning applies",
        ),
    ],
)
def test_a_project(tensorflow: int, optimizer: str, checkpoint: str, kind: str, said: str, project: Path) -> None:
    workspace = project / "Tensorflow" / "workspace"
    model, arrays = recorded(tensorflow)
    (workspace / "annotations").mkdir(parents=True)
    data(workspace / "annotations", 4 if tensorflow == 2 else 90)
    zoo(workspace / "pre-trained-models", "zoo", arrays, tensorflow)
    config = project / "my.config"
    rest = WINDOWS.format(optimizer=optimizer, checkpoint=checkpoint, kind=kind)
    config.write_text(f"model {{ {model.replace('num_classes: 3', 'num_classes: 4')} }}\n{rest}")
    # The configuration lies at the root, and its checkpoint below Tensorflow/workspace.
    config = config.rename(workspace / "my.config")
    # All of the extractor, and nothing of the heads.
    restored = sum("FeatureExtractor/" in key or "_feature_extractor/" in key for key in arrays)
    assert restored > 100
    output = three_commands(project, config.relative_to(project), 5, f"\n{restored} tensors restored")
    assert said in output


STRANGER = "TegSingh__Object-Detection-Tensorflow__Tensorflow_workspace_models_my_ssd_mobnet_pipeline.config"
INDEX = "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8.ckpt-0.index"


@pytest.mark.slow  # test_a_project[2-…] takes the same ways
def test_an_unmodified_configuration(project: Path) -> None:
    """Nine classes, four images of 320 pixels, and the names and shapes of the zoo's own checkpoint."""
    configs, indexes = extra_folder("BOXWRIGHT_USER_CONFIGS"), extra_folder("BOXWRIGHT_CHECKPOINT_INDEXES")
    if configs is None or indexes is None:
        pytest.skip("BOXWRIGHT_USER_CONFIGS and BOXWRIGHT_CHECKPOINT_INDEXES name no folders")
    expected = json.loads((indexes / "expected.json").read_text())[INDEX]
    arrays = {
        key: weight(key, tuple(shape)) if dtype in (1, "float32") else np.zeros(shape, np.int64)
        for key, (dtype, shape) in expected.items()
        if key != "_CHECKPOINTABLE_OBJECT_GRAPH"
    }
    workspace = project / "Tensorflow" / "workspace"
    (workspace / "annotations").mkdir(parents=True)
    data(workspace / "annotations", 9)
    zoo(workspace / "pre-trained-models", INDEX.removesuffix(".ckpt-0.index"), arrays, 2)
    config = workspace / "models" / "my_ssd_mobnet" / "pipeline.config"
    config.parent.mkdir(parents=True)
    config.write_bytes((configs / STRANGER).read_bytes())
    restored = sum("_feature_extractor/" in key for key in arrays)
    assert restored > 200
    three_commands(project, config.relative_to(project), 5, f"\n{restored} tensors restored")
