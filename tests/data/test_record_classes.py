"""Class numbers and names in TFRecords, held against a label map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boxwright.data.example_messages import Example, Features
from boxwright.data.image_io import encode_png
from boxwright.data.record_classes import check_record_labels
from boxwright.data.tf_example import decode_example, labels_from_one, read_features
from boxwright.data.tfrecord import write_records
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.types import Categories, Category

MAP = Categories(tuple(Category(label, label + 1, name) for label, name in enumerate(("red", "green", "blue"))))


def record(labels: list[int], texts: list[str], count: int) -> bytes:
    example = Example()
    feature = example.features.feature
    feature["image/encoded"].bytes_list.value.append(encode_png(np.zeros((8, 8, 3), np.uint8)))
    for side, value in (("xmin", 0.25), ("ymin", 0.25), ("xmax", 0.75), ("ymax", 0.75)):
        feature[f"image/object/bbox/{side}"].float_list.value.extend([value] * count)
    feature["image/object/class/label"].int64_list.value.extend(labels)
    feature["image/object/class/text"].bytes_list.value.extend(text.encode() for text in texts)
    return bytes(example.SerializeToString())


def written(path: Path, *images: tuple[list[int], list[str]]) -> list[str]:
    """Write a record for each list of labels and texts."""
    write_records(path, [record(labels, texts, len(labels)) for labels, texts in images])
    return [str(path)]


def test_numbers_from_zero_are_recognized_and_repaired(tmp_path: Path) -> None:
    paths = written(tmp_path / "a.record", ([0, 2], []), ([1, 2, 2], []))
    sentence = check_record_labels(paths, MAP)
    assert sentence is not None
    assert "5 objects have class numbers from 0 to 2 and no names, but ids in the label map start at 1" in sentence
    assert "--labels_are classes_from_zero" in sentence
    dataset = TFRecordDataset(paths, MAP, labels_from_zero=True)
    assert [dataset[index].labels.tolist() for index in range(2)] == [[0, 2], [1, 2, 2]]


@pytest.mark.parametrize(
    "images",
    [
        [([1, 2, 3], [])],
        [([1, 2], [])],
        [([0, 3], [])],  # both ends: no shift explains them
        [([0, 7], [])],
        [([0, 2], ["red", "blue"])],  # the names decide
        [([], [])],
    ],
)
def test_other_numbers_are_not_taken_for_numbers_from_zero(
    tmp_path: Path, images: list[tuple[list[int], list[str]]]
) -> None:
    assert check_record_labels(written(tmp_path / "a.record", *images), MAP) is None


def test_no_more_records_are_read_than_are_asked_for(tmp_path: Path) -> None:
    paths = written(tmp_path / "a.record", ([1], []), ([0], []))
    assert check_record_labels(paths, MAP, most=1) is None
    assert check_record_labels(written(tmp_path / "b.record", ([0], []), ([3], [])), MAP, most=1) is not None


def test_all_lists_of_class_labels_are_raised() -> None:
    features: Features = {"image/object/class/label": [0, 1], "image/neg_category_ids": [2.0], "image/height": [0]}
    assert labels_from_one(features, "here") == {
        "image/object/class/label": [1, 2],
        "image/neg_category_ids": [3],
        "image/height": [0],
    }


@pytest.mark.parametrize(
    ("labels", "texts", "wanted", "unknown"),
    [
        ([1, 3], ["Red", "BLUE"], [0, 2], []),
        ([2, 3], ["Red", "BLUE"], [2], ["Red"]),  # its number is another class's
        ([1, 3], ["red", "Blau"], [0], ["Blau"]),
        ([], ["red", "Blue"], [0], ["Blue"]),  # nothing but the case to go by
    ],
)
def test_a_text_in_another_case_is_a_class_where_the_number_is_its_id(
    labels: list[int], texts: list[str], wanted: list[int], unknown: list[str]
) -> None:
    example = record(labels, texts, 2)
    reported: dict[str, str] = {}
    sample = decode_example(read_features(example, "here"), MAP, "here", unknown=reported)
    assert sample.labels.tolist() == wanted
    assert [name for name, text in reported.items() if "dropped" in text] == unknown
    assert sample.left_out == len(unknown)
