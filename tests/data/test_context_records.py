"""Records with context features, and sequences of frames, as the TF Object Detection API writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from boxwright.base.errors import DataError
from boxwright.config.load import parse_message
from boxwright.data.batch import collate, stack_context, to_input
from boxwright.data.example_messages import SequenceExample, with_context
from boxwright.data.image_io import encode_png
from boxwright.data.tf_example import RecordFields, read_features
from boxwright.data.tfrecord import write_records
from boxwright.data.tfrecord_dataset import TFRecordDataset, TFSequenceDataset, encode_sequence
from boxwright.nn.preprocessing import IdentityResizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_dataset
from tests.camera_traps import CATEGORIES, frames_of, record_of, write_frames

CONTEXT = np.arange(6, dtype=np.float32).reshape(2, 3)
WITH_CONTEXT = RecordFields(context=True, context_image_ids=True)
PICTURES = [encode_png(np.full((4, 6, 3), level, np.uint8)) for level in (10, 20, 30)]


def add(feature: Any, *values: Any) -> None:
    kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])]
    getattr(feature, kind).value.extend(values)


def sequence(**changes: Any) -> Any:
    """Three frames with the original's keys: one box, none, two; the second one is not annotated."""
    message = SequenceExample()
    shared, lists = message.context.feature, message.feature_lists.feature_list
    add(shared["image/format"], b"png")
    add(shared["image/height"], 4)
    add(shared["image/width"], 6)
    add(shared["image/context_features"], *CONTEXT.ravel().tolist())
    add(shared["image/context_feature_length"], 3)
    rows: dict[str, list[tuple[Any, ...]]] = {
        "image/encoded": [(png,) for png in PICTURES],
        "image/source_id": [(b"f0",), (b"f1",), (b"f2",)],
        "region/bbox/xmin": [(0.5,), (), (0.0, 0.5)],
        "region/bbox/xmax": [(1.0,), (), (0.5, 1.0)],
        "region/bbox/ymin": [(0.25,), (), (0.0, 0.5)],
        "region/bbox/ymax": [(0.75,), (), (0.5, 1.0)],
        "region/label/string": [(b"lion",), (), (b"ibis", b"zebra")],
        "region/label/confidence": [(0.5,), (), (1.0, 0.25)],
        "region/is_annotated": [(1,), (0,), (1,)],
    }
    for name, frames in (rows | changes).items():
        for values in frames:
            feature = lists[name].feature.add()
            if values:
                add(feature, *values)
    return message


def written(path: Path, *messages: Any) -> Path:
    write_records(path, [one if isinstance(one, bytes) else one.SerializeToString() for one in messages])
    return path


def test_the_context_of_a_record(tmp_path: Path) -> None:
    """Written and read again; a record without any has none, and everything else stays."""
    (frame,) = frames_of(1, 1, seed=1)
    record = record_of(frame)
    path = written(tmp_path / "a.record", with_context(record, CONTEXT, ["x", "y"]), record)
    first, second = TFRecordDataset([path], CATEGORIES, WITH_CONTEXT)
    assert first.context is not None
    assert first.context.tolist() == CONTEXT.tolist()
    assert first.context_image_ids == ("x", "y")
    assert second.context is not None
    assert second.context.shape == (0, 0)
    assert first.boxes.tolist() == second.boxes.tolist()
    assert next(iter(TFRecordDataset([path], CATEGORIES))).context is None
    again = read_features(with_context(with_context(record, CONTEXT, ["x", "y"]), CONTEXT[:1], ["z"]), "r")
    assert list(again["image/context_features"]) == [0, 1, 2]
    assert list(again["image/location"]) == [b"camera1-0"]


def test_a_batch_pads_context() -> None:
    """To the largest of the batch; what is not padding is counted, and follows a split."""
    samples = [frame.sample for frame in frames_of(1, 3, seed=1)]
    for sample, rows in zip(samples, (CONTEXT, CONTEXT[:0], CONTEXT[:1]), strict=True):
        sample.context = rows
    batch = collate([to_input(sample, IdentityResizer()) for sample in samples])
    context = batch.targets.context
    assert context is not None
    assert context.counts.tolist() == [2, 0, 1]
    assert context.features[2].tolist() == [[0, 1, 2], [0, 0, 0]]
    assert context.valid.tolist() == [[True, True], [False, False], [True, False]]
    last = batch.split(3)[2].targets.context
    assert last is not None
    assert torch.equal(last.features, context.features[2:])
    samples[0].context = None
    assert stack_context(samples) is None
    samples[0].context = np.zeros((1, 4), np.float32)
    with pytest.raises(DataError, match="context features of 3 numbers and of 4 in one batch"):
        stack_context(samples)


def test_the_frames_of_a_sequence(tmp_path: Path) -> None:
    """Each frame has its own image, boxes and weights, and the context of its sequence."""
    path = written(tmp_path / "s.record", sequence(), sequence())
    dataset = TFSequenceDataset([path], CATEGORIES, WITH_CONTEXT)
    assert len(dataset) == sum(dataset.source_sizes) == 6
    frames = [dataset[index] for index in range(6)]
    assert [frame.id for frame in frames] == ["f0", "f1", "f2"] * 2
    assert [frame.annotated for frame in frames] == [True, False, True] * 2
    assert frames[0].boxes.tolist() == [[3, 1, 6, 3]]
    assert frames[2].boxes.tolist() == [[0, 0, 3, 2], [3, 2, 6, 4]]
    assert [frame.labels.tolist() for frame in frames[:3]] == [[1], [], [3, 0]]
    assert [frame.weights.tolist() for frame in frames[:3]] == [[0.5], [], [1.0, 0.25]]
    assert [frame.image[0, 0, 0] for frame in frames[:3]] == [10, 20, 30]
    assert all(frame.context is not None and frame.context.tolist() == CONTEXT.tolist() for frame in frames)
    assert dataset.encoded(4)[0] == PICTURES[1]
    only = TFSequenceDataset([path], CATEGORIES, frame=2)
    assert [only[index].id for index in range(len(only))] == ["f2", "f2"]
    with pytest.raises(DataError, match=r"s.record: record 0: has 3 frames; frame_index is 3"):
        TFSequenceDataset([path], CATEGORIES, frame=3)


def test_a_sequence_without_confidences_and_annotation_flags(tmp_path: Path) -> None:
    path = written(tmp_path / "s.record", sequence(**{"region/label/confidence": [], "region/is_annotated": []}))
    dataset = TFSequenceDataset([path], CATEGORIES)
    assert [dataset[index].weights.tolist() for index in range(3)] == [[1], [], [1, 1]]
    assert all(dataset[index].annotated for index in range(3))


def test_frames_are_written_as_they_are_read(tmp_path: Path) -> None:
    """A clip of records of single images has their boxes, names and weights."""
    frames = frames_of(1, 2, seed=1)
    features = [read_features(record_of(frame), "r") for frame in frames]
    clip = encode_sequence(features, (96, 96), CONTEXT, ["x", "y"], "r")
    dataset = TFSequenceDataset([written(tmp_path / "s.record", clip)], CATEGORIES, WITH_CONTEXT)
    assert len(dataset) == 2
    for index, frame in enumerate(frames):
        found = dataset[index]
        assert found.id == frame.sample.id
        np.testing.assert_allclose(found.boxes, frame.sample.boxes, rtol=1e-6)
        assert found.labels.tolist() == frame.sample.labels.tolist()
        assert found.weights.tolist() == [1]
        assert found.context_image_ids == ("x", "y")
    del features[0]["image/object/class/text"]
    with pytest.raises(DataError, match="r: a record's objects have no image/object/class/text"):
        encode_sequence(features, (96, 96), CONTEXT, ["x", "y"], "r")


def test_readers_of_configurations(tmp_path: Path) -> None:
    path = write_frames(tmp_path / "a.record", frames_of(1, 2, seed=1))
    written(tmp_path / "s.record", sequence())
    reader = f"""label_map_path: "{path.parent}/label_map.pbtxt" load_context_features: true
        tf_record_input_reader {{ input_path: "{tmp_path}/NAME.record" }}"""

    def read(name: str, more: str = "") -> Any:
        return build_dataset(parse_message(reader.replace("NAME", name) + more, m.InputReader), "train_input_reader")

    assert read("a")[0].context.shape == (0, 0)
    sequences = read("s", " input_type: TF_SEQUENCE_EXAMPLE frame_index: 1")
    assert [sequences[index].id for index in range(len(sequences))] == ["f1"]
    assert sequences[0].context.shape == (2, 3)
    with pytest.raises(
        DataError, match=r"a.record: record 0: no image/encoded among the sequence's lists: none; is it"
    ):
        read("a", " input_type: TF_SEQUENCE_EXAMPLE")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"region/bbox/xmin": [(0.5,), ()]}, "region/bbox/xmin has 2 frames, image/encoded has 3"),
        ({"image/encoded": []}, "no image/encoded among the sequence's lists: image/source_id, region/bbox"),
    ],
)
def test_a_damaged_sequence_is_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError, match=f"s.record: record 0: {problem}"):
        TFSequenceDataset([written(tmp_path / "s.record", sequence(**change))], CATEGORIES)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"region/is_annotated": [(b"a",), (1,), (1,)]}, "region/is_annotated: expected one number"),
        ({"region/label/string": [(), (), (b"lion",)]}, "image/object/class/label has 0 values for 1 boxes"),
        ({"region/bbox/xmin": [(b"1",), (), (0.0, 0.5)]}, "image/object/bbox/xmin: expected numbers, found the text"),
    ],
)
def test_a_damaged_frame_is_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    dataset = TFSequenceDataset([written(tmp_path / "s.record", sequence(**change))], CATEGORIES)
    with pytest.raises(DataError, match=f"s.record: record 0: frame 0: {problem}"):
        dataset[0]


@pytest.mark.parametrize(
    ("key", "values", "problem"),
    [
        ("image/context_features", (1.0,), "has 1 numbers, which are not features of 3 each"),
        ("image/context_features", (1.0, 2.0, float("nan")), "a number is not finite"),
        ("image/context_features", (b"1",), "expected numbers, found bytes"),
        ("image/context_feature_length", (0,), "which are not features of 0 each"),
        ("image/context_feature_length", (b"3",), "image/context_feature_length"),
        ("image/context_features_image_id_list", (1,), "expected texts, found the number 1"),
    ],
)
def test_damaged_context_is_named(tmp_path: Path, key: str, values: tuple[Any, ...], problem: str) -> None:
    message = sequence()
    message.context.feature[key].Clear()
    add(message.context.feature[key], *values)
    dataset = TFSequenceDataset([written(tmp_path / "s.record", message)], CATEGORIES, WITH_CONTEXT)
    with pytest.raises(DataError, match=problem):
        dataset[0]
