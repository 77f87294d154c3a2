"""CenterNet's wrong input on the command line: one line with its place and what to do, and nothing written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boxwright.data.example_messages import Example
from boxwright.data.image_io import encode_png
from boxwright.data.tfrecord import write_records
from tests.center_nets import CENTER_NET, KEYPOINT_LABEL_MAP, with_every_task, with_masks
from tests.cli.test_hostile import end_of_main

CLASSES = 'item { id: 1 name: "circle" } item { id: 2 name: "square" }'
TRAIN = """train_config { batch_size: 1 num_steps: 1
  optimizer { adam_optimizer { learning_rate { constant_learning_rate { learning_rate: 0.001 } } } } }"""


def record(folder: Path, keypoints: int = 6) -> None:
    """Write a record of two objects with so many keypoints in all, and no masks."""
    example = Example()
    feature = example.features.feature
    feature["image/encoded"].bytes_list.value.append(encode_png(np.zeros((20, 20, 3), np.uint8)))
    for side, values in {"xmin": (0.1, 0.5), "ymin": (0.2, 0.5), "xmax": (0.4, 0.9), "ymax": (0.6, 1.0)}.items():
        feature[f"image/object/bbox/{side}"].float_list.value.extend(values)
    feature["image/object/class/label"].int64_list.value.extend((1, 2))
    for axis in "xy":
        feature[f"image/object/keypoint/{axis}"].float_list.value.extend([0.3] * keypoints)
    write_records(folder / "train.record", [example.SerializeToString()])


def configuration(folder: Path, model: str, reader: str) -> Path:
    (folder / "data.pbtxt").write_text(CLASSES)
    path = folder / "pipeline.config"
    path.write_text(f"""model {{ {model} }} {TRAIN}
train_input_reader {{ label_map_path: "{folder}/data.pbtxt" {reader}
  tf_record_input_reader {{ input_path: "{folder}/train.record" }} }}""")
    return path


def said(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command that fails says, as one line."""
    monkeypatch.setattr("sys.argv", ["boxwright", *words])
    end_of_main()
    output = capsys.readouterr()
    assert "Traceback" not in output.out + output.err
    return " ".join((output.out + output.err).split())


@pytest.mark.slow_except(
    "label_map0--num_keypoints: 3-train_input_reader.load_instance_masks: the detector learns masks",
    "label_map1--load_instance_masks: true-train_input_reader.num_keypoints: the detector learns",
)
@pytest.mark.parametrize(
    ("label_map", "task", "reader", "line"),
    [
        (
            KEYPOINT_LABEL_MAP,
            "",
            "num_keypoints: 3",
            "train_input_reader.load_instance_masks: the detector learns masks",
        ),
        (KEYPOINT_LABEL_MAP, "", "load_instance_masks: true", "train_input_reader.num_keypoints: the detector learns"),
        (
            KEYPOINT_LABEL_MAP,
            "",
            "load_instance_masks: true num_keypoints: 2",
            "num_keypoints: 2, but the keypoint label map's ids go up to 2; set it to how many the records have",
        ),
        (
            KEYPOINT_LABEL_MAP.replace('name: "square"', 'name: "box"'),
            "",
            "load_instance_masks: true num_keypoints: 3",
            "keypoint_class_name: 'square' is no class with keypoints in",
        ),
        (
            KEYPOINT_LABEL_MAP,
            'keypoint_label_to_std { key: "bottom" value: 0.5 }',
            "load_instance_masks: true num_keypoints: 3",
            "keypoint_label_to_std: none for bottom; give each one, or none",
        ),
        (
            KEYPOINT_LABEL_MAP.replace('"bottom"', '"base"'),
            "",
            "load_instance_masks: true num_keypoints: 3",
            "keypoint_label_to_std: 'bottom' is no keypoint of 'circle'",
        ),
        (
            KEYPOINT_LABEL_MAP,
            "",
            "load_instance_masks: true num_keypoints: 3 use_keypoint_label_map: true",
            "use_keypoint_label_map: ",
        ),
    ],
)
def test_what_the_files_show_is_said_by_config_check(
    label_map: str,
    task: str,
    reader: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No record is there to be read. `task`: what is taken out of the first keypoint task."""
    (tmp_path / "keypoints.pbtxt").write_text(label_map)
    model = with_every_task(tmp_path / "keypoints.pbtxt").replace(task, "")
    path = configuration(tmp_path, model, reader)
    found = said(["config", "check", str(path)], monkeypatch, capsys)
    assert line in found
    assert f"{path}:" in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "reader", "keypoints", "line"),
    [
        (
            with_masks(),
            "load_instance_masks: true mask_type: PNG_MASKS",
            6,
            "train.record: sample 0 (train.record:0): the detector learns masks, but the records have none; add",
        ),
        (CENTER_NET, "num_keypoints: 3", 5, "record 0: 5 and 5 keypoint coordinates for 2 boxes of 3 keypoints"),
    ],
)
def test_what_records_show_is_said_when_they_are_read(
    model: str,
    reader: str,
    keypoints: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record(tmp_path, keypoints)
    path = configuration(tmp_path, model, reader)
    words = ["train", "--config", str(path), "--model_dir", str(tmp_path / "run"), "--device", "cpu", "--workers", "1"]
    found = said(words, monkeypatch, capsys)
    assert line in found
    assert not list((tmp_path / "run").glob("ckpt-*"))
