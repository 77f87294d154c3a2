"""`use_keypoint_label_map`: keypoints that records name one by one (held to TensorFlow's decoder by hand)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boxwright.base.errors import ConfigError, DataError
from boxwright.config.load import parse_message
from boxwright.config.support import contradictions, report
from boxwright.data.convert import encode_example
from boxwright.data.example_messages import Example
from boxwright.data.image_io import encode_png
from boxwright.data.tfrecord import write_records
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_dataset, check_reader

# Ids of keypoints count over all classes; a name is looked up whatever the object's class, as in TensorFlow.
LABEL_MAP = """
item { id: 1 name: "face" keypoints { id: 0 label: "nose" } keypoints { id: 2 label: "right_eye" } }
item { id: 2 name: "person" keypoints { id: 1 label: "left_eye" } }
"""
# Two objects of three keypoints, in an order that is not the label map's; 20 pixels wide and 10 high.
X, Y = [0.05, 0.1, 0.15, 0.2, 0.25, 0.3], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
NAMES = [b"right_eye", b"ear", b"nose", b"nose", b"left_eye", b"tail"]


def reader(folder: Path, text: str = "num_keypoints: 5", label_map: str = LABEL_MAP, **changes: Any) -> m.InputReader:
    """Return a reader of a record of two objects, with some features changed."""
    (folder / "map.pbtxt").write_text(label_map)
    floats = {"bbox/xmin": [0.1, 0.5], "bbox/ymin": [0.2, 0.5], "bbox/xmax": [0.4, 0.9], "bbox/ymax": [0.6, 1.0]}
    floats |= {"keypoint/x": X, "keypoint/y": Y} | changes.pop("floats", {})
    wholes: dict[str, list[int]] = {"class/label": [1, 2], "keypoint/visibility": [2, 2, 1, 0, 2, 2]}
    wholes |= changes.pop("wholes", {})
    example = Example()
    feature = example.features.feature
    feature["image/encoded"].bytes_list.value.append(encode_png(np.zeros((10, 20, 3), np.uint8)))
    for name, values in floats.items():
        feature[f"image/object/{name}"].float_list.value.extend(values)
    for name, numbers in wholes.items():
        feature[f"image/object/{name}"].int64_list.value.extend(numbers)
    feature["image/object/keypoint/text"].bytes_list.value.extend(changes.pop("names", NAMES))
    assert not changes
    write_records(folder / "a.record", [example.SerializeToString()])
    source = f'label_map_path: "{folder}/map.pbtxt" tf_record_input_reader {{ input_path: "{folder}/a.record" }}'
    return parse_message(f"{source} use_keypoint_label_map: true {text}", m.InputReader)


def test_keypoints_go_where_their_names_say(tmp_path: Path) -> None:
    """Names that the label map lacks are dropped; keypoints that an object lacks, and hidden ones, are not labeled."""
    keypoints = build_dataset(reader(tmp_path), "train_input_reader")[0].keypoints
    assert keypoints is not None
    assert keypoints.shape == (2, 5, 3)
    first, second = keypoints
    np.testing.assert_allclose(first[[0, 2]], [[3, 3, 1], [1, 1, 2]], rtol=1e-6)
    np.testing.assert_allclose(second[1], [5, 5, 2], rtol=1e-6)
    assert first[:, 2].tolist() == [1, 0, 2, 0, 0]
    assert second[:, 2].tolist() == [0, 2, 0, 0, 0], "its nose is hidden"


def test_without_visibilities_named_keypoints_are_labeled(tmp_path: Path) -> None:
    visible = {"keypoint/visibility": list[int]()}
    keypoints = build_dataset(reader(tmp_path, wholes=visible), "train_input_reader")[0].keypoints
    assert keypoints is not None
    assert keypoints[..., 2].tolist() == [[1, 0, 1, 0, 0], [1, 1, 0, 0, 0]]


def test_depths_go_with_their_keypoints(tmp_path: Path) -> None:
    """TensorFlow leaves them in the record's order."""
    depths = {"keypoint/z": [1, 2, 3, 4, 5, 6], "keypoint/z/weights": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}
    text = "num_keypoints: 3 load_keypoint_depth_features: true"
    sample = build_dataset(reader(tmp_path, text, floats=depths), "train_input_reader")[0]
    assert sample.keypoint_depths is not None
    assert sample.keypoint_depth_weights is not None
    assert sample.keypoint_depths.tolist() == [[3, 0, 1], [4, 5, 0]]
    np.testing.assert_allclose(sample.keypoint_depth_weights, [[0.3, 0, 0.1], [0.4, 0.5, 0]], rtol=1e-6)


def test_names_are_written_with_keypoints(tmp_path: Path) -> None:
    """What `convert` writes is read alike by names and by places; a class's record names its own keypoints."""
    named = reader(tmp_path, "num_keypoints: 3")
    dataset = build_dataset(named, "train_input_reader")
    sample = dataset[0]
    assert sample.keypoints is not None
    sample.keypoints[1] = [[0, 0, 0], [4, 6, 2], [0, 0, 0]]  # the person's left eye
    again = encode_example(sample, encode_png(sample.image), dataset.categories)
    texts = Example.FromString(again).features.feature["image/object/keypoint/text"].bytes_list.value
    assert [*texts] == [b"nose", b"", b"right_eye", b"", b"left_eye", b""]
    write_records(tmp_path / "a.record", [again])
    for config in (named, named.replaced(use_keypoint_label_map=False)):
        keypoints = build_dataset(config, "train_input_reader")[0].keypoints
        assert keypoints is not None
        np.testing.assert_allclose(keypoints, sample.keypoints, rtol=1e-6)


def test_records_that_name_no_keypoints_have_none(tmp_path: Path) -> None:
    """As where several sets are trained on together, of which one has only boxes."""
    none: dict[str, Any] = {"floats": {"keypoint/x": [], "keypoint/y": []}, "wholes": {"keypoint/visibility": []}}
    keypoints = build_dataset(reader(tmp_path, names=[], **none), "train_input_reader")[0].keypoints
    assert keypoints is not None
    assert keypoints.tolist() == np.zeros((2, 5, 3)).tolist()
    corners = {f"bbox/{side}": list[float]() for side in ("xmin", "ymin", "xmax", "ymax")}
    empty: dict[str, Any] = {"floats": none["floats"] | corners, "wholes": none["wholes"] | {"class/label": []}}
    keypoints = build_dataset(reader(tmp_path, names=[], **empty), "train_input_reader")[0].keypoints
    assert keypoints is not None
    assert keypoints.shape == (0, 5, 3)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"names": NAMES[:5]}, "a.record: record 0: image/object/keypoint/text has 5 names for 2 boxes"),
        (
            {"names": [b"nose", b"tail"] * 2},
            "a.record: record 0: 6 and 6 keypoint coordinates for 2 boxes of 2 keypoints",
        ),
        ({"names": [*NAMES[:5], b"nose"]}, "image/object/keypoint/text names 'nose' twice for object 1"),
        ({"names": []}, "6 and 6 keypoint coordinates for 2 boxes of 0 keypoints"),
    ],
)
def test_names_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], wanted: str) -> None:
    dataset = build_dataset(reader(tmp_path, **changes), "train_input_reader")
    with pytest.raises(DataError, match=re.escape(wanted)):
        dataset[0]


@pytest.mark.parametrize(
    ("text", "label_map", "wanted"),
    [
        ("num_keypoints: 2", LABEL_MAP, "keypoint 'right_eye' has id 2, but num_keypoints is 2; set it to 3 or more"),
        ("num_keypoints: 3", LABEL_MAP.replace("right_eye", "left_eye"), "label 'left_eye' occurs 2 times"),
        ("num_keypoints: 3", LABEL_MAP.replace("id: 2 label", "id: 1 label"), "the keypoint id 1 occurs 2 times"),
        ("num_keypoints: 3", 'item { id: 1 name: "face" }', "no item has keypoints"),
    ],
)
def test_label_maps_that_do_not_do_are_refused_before_records_are_read(
    tmp_path: Path, text: str, label_map: str, wanted: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(wanted)) as problem:
        check_reader(reader(tmp_path, text, label_map), "train_input_reader")
    assert "use_keypoint_label_map" in str(problem.value)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('num_keypoints: 3 coco_input_reader { annotations: "x" }', "records name keypoints in tf_record_input_reader"),
        (
            'num_keypoints: 3 input_type: TF_SEQUENCE_EXAMPLE tf_record_input_reader { input_path: "x" }',
            "TF_EXAMPLE alone, as in TensorFlow",
        ),
        ('tf_record_input_reader { input_path: "x" }', "set num_keypoints beside it"),
    ],
)
def test_where_nothing_names_keypoints_it_is_refused(text: str, wanted: str) -> None:
    (problem,) = contradictions(parse_message(f"use_keypoint_label_map: true {text}", m.InputReader))
    assert wanted in str(problem)


def test_weights_of_types_are_without_effect_as_in_tensorflow() -> None:
    """Its `inputs.py` multiplies visibilities by them; its trainer then hands the product to no model."""
    (found,) = report(parse_message("keypoint_type_weight: [1, 2]", m.InputReader))
    assert found.status.verdict == "without effect"
    assert "hands them to no model" in found.status.note
