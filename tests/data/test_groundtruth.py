"""What is learnt of objects: merged labels, stored scores, class weights, the first so many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.data.batch import collate, to_input
from boxwright.data.groundtruth import ClassScores, KeepFirst, MergeLabels, WeighClasses
from boxwright.data.label_map import load_label_map
from boxwright.nn.criteria.target_assigner import ArgmaxMatcher, ClassColumns, TargetAssigner
from boxwright.nn.ops.boxes import FasterRcnnBoxCoder
from boxwright.nn.preprocessing import FixedShapeResizer
from boxwright.pipeline.input_reader import build_groundtruth
from boxwright.pipeline.training import build_training

RNG = np.random.default_rng(0)


def sample(boxes: list[list[float]], labels: list[int], side: int = 100) -> bw.Sample:
    image = np.zeros((side, side, 3), np.uint8)
    return bw.Sample(image, np.array(boxes, np.float32).reshape(-1, 4) * side, np.array(labels), id="a")


def test_merging_as_tf_does() -> None:
    """Cases of TF's own tests of merge_boxes_with_multiple_labels, in our order of coordinates."""
    found = MergeLabels(5)(
        sample([[0.25, 0.25, 0.75, 0.75], [0, 0, 0.75, 0.5], [0.25, 0.25, 0.75, 0.75]], [0, 4, 2]), RNG
    )
    assert found.class_scores is not None
    assert found.class_scores.tolist() == [[1, 0, 1, 0, 0], [0, 0, 0, 0, 1]]
    assert (found.boxes / 100).tolist() == [[0.25, 0.25, 0.75, 0.75], [0, 0, 0.75, 0.5]]
    corners = [[0, 0, 1, 1], [1, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]]
    found = MergeLabels(4)(sample([*corners, *corners[::-1]], [0, 1, 2, 3, 2, 1, 0, 3]), RNG)
    assert found.class_scores is not None
    assert found.class_scores.tolist() == [[1, 0, 0, 1], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    empty = MergeLabels(5)(sample([], []), RNG)
    assert empty.class_scores is not None
    assert empty.class_scores.shape == (0, 5)


def test_merged_labels_reach_the_anchors() -> None:
    one = MergeLabels(3)(sample([[0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]], [0, 2]), RNG)
    targets = collate([to_input(one, FixedShapeResizer(100, 100))]).targets
    assigner = TargetAssigner(ClassColumns(3), ArgmaxMatcher(0.5), FasterRcnnBoxCoder())
    classes = assigner(torch.tensor([[0.0, 0, 50, 50], [60, 60, 90, 90]]), targets).classes
    assert classes.tolist() == [[[0, 1, 0, 1], [1, 0, 0, 0]]], "background first"


def test_stored_scores() -> None:
    one = sample([[0, 0, 1, 1], [0, 0, 0.5, 1]], [2, 0])
    without = ClassScores(3)(one, RNG)
    assert without.class_scores is not None
    assert without.class_scores.tolist() == [[0, 0, 1], [1, 0, 0]], "labels, where there are no scores"
    one.class_scores = np.array([[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]], np.float32)
    assert ClassScores(3)(one, RNG) is one
    with pytest.raises(bw.DataError, match="3 multiclass scores per object, but 4 classes"):
        ClassScores(4)(one, RNG)


def test_weights_and_limit() -> None:
    one = sample([[0, 0, 1, 1], [0, 0, 0.5, 1], [0, 0, 0.2, 1]], [1, 0, 1])
    assert WeighClasses(np.array([1, 0.25], np.float32))(one, RNG).weights.tolist() == [0.25, 1, 0.25]
    assert KeepFirst(2)(one, RNG).labels.tolist() == [1, 0]
    assert len(KeepFirst(9)(one, RNG).boxes) == 3


def test_scores_are_read_from_records(tmp_path: Path) -> None:
    from boxwright.data.tf_example import RecordFields, decode_example

    image = np.full((4, 4, 3), 7, np.uint8)
    from boxwright.data.image_io import encode_png

    features = {f"image/object/bbox/{side}": [0.0, 0.5] for side in ("xmin", "ymin")}
    features |= {f"image/object/bbox/{side}": [0.5, 1.0] for side in ("xmax", "ymax")}
    features |= {"image/encoded": [encode_png(image)], "image/object/class/label": [1, 2]}
    (tmp_path / "map.pbtxt").write_text("item { id: 1 name: 'a' } item { id: 2 name: 'b' } item { id: 3 name: 'c' }")
    categories = load_label_map(tmp_path / "map.pbtxt")
    scores = {"image/object/class/multiclass_scores": [0.25, 0.25, 0.5, 0, 1, 0]}
    found = decode_example({**features, **scores}, categories, "r", RecordFields(multiclass_scores=True))
    assert found.class_scores is not None
    assert found.class_scores.tolist() == [[0.25, 0.25, 0.5], [0, 1, 0]]
    assert decode_example(features, categories, "r", RecordFields(multiclass_scores=True)).class_scores is None
    assert decode_example({**features, **scores}, categories, "r").class_scores is None
    bad = {"image/object/class/multiclass_scores": [0.25] * 5}
    with pytest.raises(bw.DataError, match="5 values for 2 objects"):
        decode_example({**features, **bad}, categories, "r", RecordFields(multiclass_scores=True))


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (
            ["train_config.merge_multiple_label_boxes=true", "train_config.use_multiclass_scores=true"],
            "use_multiclass_scores: excludes merge_multiple_label_boxes",
        ),
        (["train_config.use_multiclass_scores=true"], "set train_input_reader.load_multiclass_scores too"),
        (["train_input_reader.max_number_of_boxes=0"], "max_number_of_boxes: expected at least 1"),
        (["train_input_reader.class_weight={name: 'moon' weight: 2}"], "unknown class 'moon'; known:"),
    ],
)
def test_contradictions(small_config: Path, shapes_data: Path, overrides: list[str], wanted: str) -> None:
    config = bw.load_config(small_config, overrides)
    with pytest.raises(bw.ConfigError, match=wanted):
        build_training(config)
        build_groundtruth(config, load_label_map(shapes_data / "label_map.pbtxt"), 4)


def test_all_of_it_trains(small_config: Path, tmp_path: Path) -> None:
    overrides = [
        "train_config.num_steps=1",
        "train_config.merge_multiple_label_boxes=true",
        "train_input_reader.max_number_of_boxes=3",
        "train_input_reader.class_weight={name: 'star' weight: 2}",
        "train_input_reader.group_by_aspect_ratio=true",
    ]
    assert (
        bw.train(bw.load_config(small_config, overrides), tmp_path, bw.RunSettings(evaluate=False, workers=0)).step == 1
    )
