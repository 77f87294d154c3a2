"""COCO's keypoints: read, written, converted, and every way they can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from boxwright.base.errors import ConfigError, DataError
from boxwright.config.load import parse_message
from boxwright.data.coco import CocoDataset, coco_annotation
from boxwright.data.convert import write_coco, write_tfrecords
from boxwright.data.label_map import load_label_map
from boxwright.data.open_dataset import open_dataset
from boxwright.data.tf_example import RecordFields
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_dataset
from boxwright.types import Categories, Category

PERSON = {"id": 7, "name": "person", "keypoints": ["nose", "hand"]}
CHAIR = {"id": 9, "name": "chair"}


def annotation(**changes: Any) -> dict[str, Any]:
    row = {"id": 1, "image_id": 1, "category_id": 7, "bbox": [1, 2, 20, 10], "keypoints": [3, 4, 2, 5.5, 6, 1]}
    return row | changes


def coco_file(folder: Path, annotations: list[dict[str, Any]], categories: list[dict[str, Any]]) -> Path:
    Image.new("RGB", (40, 30)).save(folder / "a.png")
    images = [{"id": 1, "file_name": "a.png", "height": 30, "width": 40}]
    path = folder / "coco.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path


ROWS = [
    annotation(),
    annotation(id=2, keypoints=[0, 0, 0, 30, 20, 2]),
    annotation(id=3, keypoints=None),
    annotation(id=4, category_id=9),
]
POINTS = [
    [[3, 4, 1], [5.5, 6, 1]],  # labeled but occluded counts, too
    [[0, 0, 0], [30, 20, 1]],
    [[0, 0, 0], [0, 0, 0]],
    [[0, 0, 0], [0, 0, 0]],  # a chair has none
]


def test_they_are_read_if_asked_for(tmp_path: Path) -> None:
    path = coco_file(tmp_path, ROWS, [PERSON, CHAIR])
    assert CocoDataset(path)[0].keypoints is None
    for count in (2, None):
        sample = CocoDataset(path, num_keypoints=count)[0]
        assert sample.keypoints is not None
        assert sample.keypoints.tolist() == POINTS
    wide = CocoDataset(path, num_keypoints=3)[0].keypoints
    assert wide is not None
    assert wide[:, :2].tolist() == POINTS
    assert not wide[:, 2].any()
    person = CocoDataset(path).categories.by_name("person")
    assert person is not None
    assert person.keypoints == ("nose", "hand")


def test_the_label_map_has_more_than_the_file(tmp_path: Path) -> None:
    """The file says nothing of the keypoints of one class, whose objects are written again with all of them."""
    path = coco_file(tmp_path, ROWS[3:], [PERSON, CHAIR])
    seat = Category(1, 9, "chair", keypoints=("seat",), keypoint_ids=(2,))
    ours = Categories((Category(0, 7, "person", keypoints=("nose", "hand")), seat))
    sample = CocoDataset(path, categories=ours, num_keypoints=None)[0]
    assert sample.keypoints is not None
    assert sample.keypoints.shape == (1, 3, 3)
    assert coco_annotation(sample, 0, seat)["keypoints"] == [0, 0, 0]


@pytest.mark.parametrize("value", [1e50, 1e9])
def test_what_lies_far_outside_is_refused_where_it_is_visible(value: float, tmp_path: Path) -> None:
    """1e50 is infinite in the precision of the loss."""
    path = coco_file(tmp_path, [annotation(keypoints=[3, 4, 2, value, 6, 1])], [PERSON])
    with pytest.raises(DataError, match=r"image 1: keypoint 1 of object 0: .* pixels from the origin are more than"):
        CocoDataset(path, num_keypoints=None)[0]
    hidden = coco_file(tmp_path, [annotation(keypoints=[3, 4, 2, value, 6, 0])], [PERSON])
    assert CocoDataset(hidden, num_keypoints=None)[0].keypoints is not None


def test_a_label_map_says_where_they_go(tmp_path: Path) -> None:
    path = coco_file(tmp_path, ROWS[:2], [PERSON])
    ours = Categories((Category(0, 1, "person", keypoints=("hand", "nose"), keypoint_ids=(0, 3)),))
    points = CocoDataset(path, categories=ours, num_keypoints=4)[0].keypoints
    assert points is not None
    assert points.tolist() == [
        [[5.5, 6, 1], [0, 0, 0], [0, 0, 0], [3, 4, 1]],
        [[30, 20, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]],
    ]
    other = Categories((Category(0, 1, "person", keypoints=("nose", "foot")),))
    with pytest.raises(DataError, match="category 'person': keypoint 'hand' is not in the label map"):
        CocoDataset(path, categories=other, num_keypoints=2)


def test_a_reader_of_a_configuration_reads_them(tmp_path: Path) -> None:
    path = coco_file(tmp_path, ROWS, [PERSON, CHAIR])
    reader = f'coco_input_reader {{ annotations: "{path}" }}'
    for number, wanted in ((2, POINTS), (0, None)):
        text = f"num_keypoints: {number} {reader}"
        points = build_dataset(parse_message(text, m.InputReader), "train_input_reader")[0].keypoints
        assert (None if points is None else points.tolist()) == wanted
    with pytest.raises(
        ConfigError, match="num_keypoints: keypoints are read from records, COCO's files, archives and Par"
    ):
        build_dataset(
            parse_message(f'num_keypoints: 2 voc_input_reader {{ root: "{tmp_path}" }}', m.InputReader),
            "train_input_reader",
        )


def test_they_survive_conversion(tmp_path: Path) -> None:
    path = coco_file(tmp_path, ROWS, [PERSON, CHAIR])
    write_coco(open_dataset(path), tmp_path / "again" / "coco.json")
    again = CocoDataset(tmp_path / "again" / "coco.json", num_keypoints=2)[0].keypoints
    assert again is not None
    assert again.tolist() == POINTS
    written = json.loads((tmp_path / "again" / "coco.json").read_text())
    assert [row.get("num_keypoints") for row in written["annotations"]] == [2, 1, 0, None]
    (tmp_path / "records").mkdir()
    write_tfrecords(open_dataset(path), tmp_path / "records" / "a.record")
    categories = load_label_map(tmp_path / "records" / "label_map.pbtxt")
    assert categories.items[0].keypoints == ("nose", "hand")
    record = TFRecordDataset([tmp_path / "records" / "a.record"], categories, RecordFields(num_keypoints=2))[
        0
    ].keypoints
    assert record is not None
    np.testing.assert_allclose(record, POINTS, atol=1e-4)


@pytest.mark.parametrize(
    ("row", "category", "wanted"),
    [
        (annotation(keypoints=[1, 2, 2]), PERSON, "expected x, y, v of 2 keypoints, found 3"),
        (annotation(keypoints="all"), PERSON, "expected x, y, v of 2 keypoints, found all"),
        (annotation(keypoints=[1, 2, 2, 3, "a", 1]), PERSON, "keypoints: expected a number"),
        (annotation(keypoints=[1, 2, 2, 3, float("inf"), 1]), PERSON, "keypoints"),
        (annotation(), PERSON | {"keypoints": "nose"}, "keypoints: expected names, found nose"),
        (annotation(), PERSON | {"keypoints": ["a", "b", "c"]}, "have 3 keypoints, but num_keypoints is 2"),
    ],
)
def test_what_is_wrong_is_named(row: dict[str, Any], category: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    path = coco_file(tmp_path, [row], [category])
    with pytest.raises(DataError, match=wanted):
        CocoDataset(path, num_keypoints=2)[0]
