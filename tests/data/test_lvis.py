"""What LVIS's files have beyond COCO's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from boxwright.base.errors import DataError
from boxwright.data.coco import CocoDataset
from boxwright.data.convert import write_coco, write_tfrecords
from boxwright.data.label_map import load_label_map
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.types import Categories, Category


def content() -> dict[str, Any]:
    """A file as LVIS 1.0 has it: images are named by their address alone."""
    return {
        "images": [
            {
                "id": 9,
                "coco_url": "http://images.cocodataset.org/train2017/000000000009.jpg",
                "height": 40,
                "width": 60,
                "neg_category_ids": [7, 5],
                "not_exhaustive_category_ids": [2],
            }
        ],
        "annotations": [{"id": 1, "image_id": 9, "category_id": 2, "bbox": [1, 2, 30, 20], "area": 500}],
        "categories": [
            {"id": 2, "name": "mug", "frequency": "f"},
            {"id": 5, "name": "kiwi", "frequency": "c"},
            {"id": 7, "name": "puffin", "frequency": "r"},
        ],
    }


def written(folder: Path, given: dict[str, Any]) -> Path:
    path = folder / "lvis.json"
    path.write_text(json.dumps(given))
    (folder / "train2017").mkdir(exist_ok=True)
    Image.new("RGB", (60, 40)).save(folder / "train2017" / "000000000009.jpg")
    return path


def test_lists_frequencies_and_addresses(tmp_path: Path) -> None:
    dataset = CocoDataset(written(tmp_path, content()))
    sample = dataset[0]
    assert sample.filename == "train2017/000000000009.jpg"
    assert (sample.negative_labels.tolist(), sample.not_exhaustive_labels.tolist()) == ([1, 2], [0])
    assert [category.frequency for category in dataset.categories] == ["f", "c", "r"]


def test_a_label_map_without_frequencies_gets_the_files(tmp_path: Path) -> None:
    given = Categories((Category(0, 1, "puffin"), Category(1, 2, "mug", frequency="r"), Category(2, 3, "kiwi")))
    dataset = CocoDataset(written(tmp_path, content()), categories=given)
    assert [(one.name, one.frequency) for one in dataset.categories] == [("puffin", "r"), ("mug", "r"), ("kiwi", "c")]
    assert dataset[0].negative_labels.tolist() == [0, 2]
    again = Categories.from_list(dataset.categories.to_list())
    assert [one.frequency for one in again] == ["r", "r", "c"]


def test_they_stay_in_records_and_in_cocos_files(tmp_path: Path) -> None:
    dataset = CocoDataset(written(tmp_path, content()))
    write_tfrecords(dataset, tmp_path / "r" / "lvis.record")
    classes = load_label_map(tmp_path / "r" / "label_map.pbtxt")
    assert [one.frequency for one in classes] == ["f", "c", "r"]
    records = TFRecordDataset([str(tmp_path / "r" / "lvis.record")], classes)
    write_coco(records, tmp_path / "c" / "instances.json")
    for same in (records[0], CocoDataset(tmp_path / "c" / "instances.json")[0]):
        assert (same.negative_labels.tolist(), same.not_exhaustive_labels.tolist()) == ([1, 2], [0])
    again = CocoDataset(tmp_path / "c" / "instances.json").categories
    assert [one.frequency for one in again] == ["f", "c", "r"]
    np.testing.assert_array_equal(records[0].boxes, dataset[0].boxes)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"neg_category_ids": [4]}, r"image 9: neg_category_ids: expected ids of categories, found \[4\]"),
        ({"neg_category_ids": 7}, "neg_category_ids: expected ids of categories, found 7"),
        ({"not_exhaustive_category_ids": [[2]]}, "not_exhaustive_category_ids: expected ids of categories"),
    ],
)
def test_a_list_of_something_else_is_refused(tmp_path: Path, change: dict[str, Any], wanted: str) -> None:
    given = content()
    given["images"][0] |= change
    dataset = CocoDataset(written(tmp_path, given))
    with pytest.raises(DataError, match=wanted):
        dataset[0]


def test_an_unknown_frequency_is_refused(tmp_path: Path) -> None:
    given = content()
    given["categories"][1]["frequency"] = "often"
    with pytest.raises(DataError, match="category 'kiwi': frequency: expected r, c or f, found 'often'"):
        CocoDataset(written(tmp_path, given))
