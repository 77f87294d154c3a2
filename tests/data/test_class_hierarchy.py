"""Objects of classes and of those above, from records and their label map, by a hand-worked case."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boxwright.base.errors import DataError
from boxwright.config.load import parse_message
from boxwright.config.support import contradictions
from boxwright.data.example_messages import Example
from boxwright.data.image_io import encode_png
from boxwright.data.label_map import label_map_text, load_label_map
from boxwright.data.tfrecord import write_records
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_dataset

LABEL_MAP = """
item { id: 1 name: "animal" descendant_ids: [2, 4] }
item { id: 2 name: "dog" ancestor_ids: 1 descendant_ids: 4 }
item { id: 3 name: "car" }
item { id: 4 name: "terrier" ancestor_ids: 2 ancestor_ids: 1 }
"""


def reader(folder: Path, expand: bool, label_map: str = LABEL_MAP) -> m.InputReader:
    (folder / "map.pbtxt").write_text(label_map)
    example = Example()
    feature = example.features.feature
    feature["image/encoded"].bytes_list.value.append(encode_png(np.zeros((10, 20, 3), np.uint8)))
    for side, values in {"xmin": (0.1, 0.5), "ymin": (0.2, 0.5), "xmax": (0.4, 0.9), "ymax": (0.6, 1.0)}.items():
        feature[f"image/object/bbox/{side}"].float_list.value.extend(values)
    feature["image/object/class/label"].int64_list.value.extend((4, 3))
    feature["image/object/weight"].float_list.value.extend((0.5, 2.0))
    feature["image/class/label"].int64_list.value.extend((4,))
    feature["image/neg_category_ids"].int64_list.value.extend((2,))
    write_records(folder / "a.record", [example.SerializeToString()])
    text = f'label_map_path: "{folder}/map.pbtxt" tf_record_input_reader {{ input_path: "{folder}/a.record" }}'
    return parse_message(f"{text} expand_labels_hierarchy: {str(expand).lower()}", m.InputReader)


def test_objects_are_of_the_classes_above_too(tmp_path: Path) -> None:
    plain = build_dataset(reader(tmp_path, False), "train_input_reader")[0]
    assert plain.labels.tolist() == [3, 2]
    found = build_dataset(reader(tmp_path, True), "train_input_reader")[0]
    # The terrier is an animal, a dog and a terrier; the car stays one.
    assert found.labels.tolist() == [0, 1, 3, 2]
    assert np.array_equal(found.boxes, plain.boxes[[0, 0, 0, 1]])
    assert found.weights.tolist() == [0.5, 0.5, 0.5, 2.0]
    assert found.verified_labels.tolist() == [0, 1, 3]
    # Where there is no dog, there is no terrier; there may be another animal.
    assert found.negative_labels.tolist() == [1, 3]


def test_label_maps_keep_it(tmp_path: Path) -> None:
    (tmp_path / "map.pbtxt").write_text(LABEL_MAP)
    categories = load_label_map(tmp_path / "map.pbtxt")
    assert [one.ancestor_ids for one in categories] == [(), (1,), (), (2, 1)]
    (tmp_path / "again.pbtxt").write_text(label_map_text(categories))
    assert load_label_map(tmp_path / "again.pbtxt") == categories


@pytest.mark.parametrize(
    ("label_map", "wanted"),
    [
        (LABEL_MAP.replace("ancestor_ids: 2", "ancestor_ids: 7"), "map.pbtxt: 'terrier' is related to id 7, which no"),
        ('item { id: 3 name: "a" } item { id: 4 name: "b" }', "no item has ancestor_ids or descendant_ids"),
    ],
)
def test_label_maps_that_do_not_do(tmp_path: Path, label_map: str, wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        build_dataset(reader(tmp_path, True, label_map), "train_input_reader")


def test_of_records_alone() -> None:
    text = 'expand_labels_hierarchy: true coco_input_reader { annotations: "x" }'
    (problem,) = contradictions(parse_message(text, m.InputReader))
    assert "expand_labels_hierarchy: it is for tf_record_input_reader's TF_EXAMPLE" in str(problem)
