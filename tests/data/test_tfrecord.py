"""TFRecords: what TensorFlow's decoder returned, and every way a file can be broken."""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boxwright.base.errors import DataError, OutputError
from boxwright.data.convert import encode_example
from boxwright.data.label_map import load_label_map
from boxwright.data.shard_files import expand_paths
from boxwright.data.tf_example import RecordFields, decode_example, read_features
from boxwright.data.tfrecord import TFRecordFile, write_records
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.types import Categories, Category
from tests.conftest import GOLDEN

RECORDS = GOLDEN / "records"
DECODED = np.load(RECORDS / "shapes_decoded.npz")
CATEGORIES = load_label_map(RECORDS / "label_map.pbtxt")


def recorded(index: int, field: str) -> Any:
    return DECODED[f"{index}/{field}"]


@pytest.mark.parametrize(
    "name",
    ["shapes.record", "shapes.record-?????-of-?????", "shapes.record@2", "shapes.gz.record", "shapes.zlib.record"],
)
def test_decodes_to_what_tensorflow_decoded(name: str) -> None:
    dataset = TFRecordDataset([RECORDS / name], CATEGORIES, RecordFields(masks="png", num_keypoints=3))
    assert len(dataset) == 6
    for index in range(6):
        sample = dataset[index]
        height, width = sample.image.shape[:2]
        assert np.array_equal(sample.image, recorded(index, "image")), "pixels, JPEG's among them"
        boxes = sample.boxes[:, [1, 0, 3, 2]] / [height, width, height, width]
        np.testing.assert_allclose(boxes, recorded(index, "groundtruth_boxes"), atol=1e-6)
        assert sample.labels.tolist() == (recorded(index, "groundtruth_classes") - 1).tolist()
        np.testing.assert_allclose(sample.areas, recorded(index, "groundtruth_area"), rtol=1e-5)
        for ours, theirs in (("is_crowd", "is_crowd"), ("difficult", "difficult"), ("group_of", "group_of")):
            assert getattr(sample, ours).tolist() == recorded(index, f"groundtruth_{theirs}").astype(bool).tolist()
        assert sample.weights.tolist() == recorded(index, "groundtruth_weights").tolist()
        assert sample.masks is not None
        assert np.array_equal(sample.masks, recorded(index, "groundtruth_instance_masks"))
        assert sample.keypoints is not None
        points = sample.keypoints[..., [1, 0]] / [height, width]
        np.testing.assert_allclose(points, recorded(index, "groundtruth_keypoints"), atol=1e-6)
        visible = sample.keypoints[..., 2] > 0
        assert visible.tolist() == recorded(index, "groundtruth_keypoint_visibilities").tolist()
        assert sample.id == recorded(index, "source_id").item().decode()
        assert sample.filename == recorded(index, "filename").item().decode()


def test_numerical_masks(tmp_path: Path) -> None:
    """The PNG masks of a record, written anew as numbers, decode to the same."""
    from boxwright.data.example_messages import Example

    record = TFRecordFile(RECORDS / "shapes.record")[0]
    example = Example()
    example.ParseFromString(record)
    feature = example.features.feature["image/object/mask"]
    feature.Clear()
    feature.float_list.value.extend(recorded(0, "groundtruth_instance_masks").flatten().tolist())
    features = read_features(example.SerializeToString(), "here")
    sample = decode_example(features, CATEGORIES, "here", RecordFields(masks="numerical"))
    assert sample.masks is not None
    assert np.array_equal(sample.masks, recorded(0, "groundtruth_instance_masks"))


def test_class_text_takes_precedence_over_label() -> None:
    features = dict(read_features(TFRecordFile(RECORDS / "shapes.record")[0], "here"))
    features["image/object/class/text"] = [b"square", b"Circle", b"nothing of the kind"]
    features["image/object/class/label"] = [3, 3, 3]
    unknown: dict[str, str] = {}
    sample = decode_example(features, CATEGORIES, "here", unknown=unknown)
    assert sample.labels.tolist() == [1, 0], "by name, by display name, left out"
    assert list(unknown) == ["nothing of the kind"]
    features["image/object/class/text"] = []
    assert decode_example(features, CATEGORIES, "here").labels.tolist() == [2, 2, 2]


def test_unknown_classes_are_left_out_with_a_warning() -> None:
    dataset = TFRecordDataset([RECORDS / "shapes.record"], Categories((Category(0, 1, "circle"),)))
    with pytest.warns(UserWarning, match="is not in the label map; its boxes are dropped"):
        sample = dataset[0]
    assert set(sample.labels.tolist()) <= {0}


def broken(tmp_path: Path, change: Any) -> Path:
    data = bytearray((RECORDS / "shapes.record").read_bytes())
    path = tmp_path / "broken.record"
    path.write_bytes(change(data))
    return path


def flip(position: int) -> Any:
    def change(data: bytearray) -> bytearray:
        data[position] ^= 1
        return data

    return change


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (flip(100), "record 0 at byte 0: checksum of its \\d+ bytes does not match"),
        (flip(0), "record 0 at byte 0: checksum of the record's length does not match"),
        (lambda data: data[:-3], "record 5 at byte \\d+: \\d+ bytes are announced, but the file ends 3 short"),
        (lambda data: data + b"\x01\x02", "record 6 at byte 13321: the file ends after 2 of 12 header bytes"),
        (lambda data: bytearray(), "no records \\(record 0 at byte 0"),
        (lambda data: bytearray(b"\x1f\x8b" + bytes(30)), "not readable as GZIP \\(record 0, before byte"),
    ],
    ids=["flipped data", "flipped length", "cut off", "tail", "empty", "false gzip"],
)
def test_broken_files(tmp_path: Path, change: Any, wanted: str) -> None:
    path = broken(tmp_path, change)
    with pytest.raises(DataError, match=wanted) as caught:
        dataset = TFRecordDataset([path], CATEGORIES)
        for index in range(len(dataset)):
            dataset[index]
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "wanted"), [("corrupt.record", "record 3 at byte 5540"), ("truncated.record", "record 5 at byte 11061")]
)
def test_recorded_broken_files(name: str, wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        dataset = TFRecordDataset([RECORDS / name], CATEGORIES)
        for index in range(len(dataset)):
            dataset[index]


@pytest.mark.parametrize(
    ("name", "compression", "wanted"),
    [
        ("shapes.record", "gzip", "not readable as GZIP"),
        ("shapes.gz.record", "none", "is it a TFRecord, and not packed in another way?"),
        ("shapes.gz.record", "zlib", "not readable as ZLIB"),
        ("label_map.pbtxt", "auto", "is it a TFRecord"),
    ],
)
def test_wrong_compression(name: str, compression: Any, wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        TFRecordDataset([RECORDS / name], CATEGORIES, compression=compression)


def test_gzip_cut_off(tmp_path: Path) -> None:
    data = gzip.compress((RECORDS / "shapes.record").read_bytes())
    (tmp_path / "cut.gz").write_bytes(data[:-50])
    with pytest.raises(DataError, match="the GZIP stream is cut off at byte"):
        TFRecordFile(tmp_path / "cut.gz")


def test_paths(tmp_path: Path) -> None:
    for shard in (0, 2):
        (tmp_path / f"a-{shard:05d}-of-00003").touch()
    with pytest.raises(DataError, match="1 of 3 shards are missing: a-00001-of-00003"):
        expand_paths([f"{tmp_path}/a-?????-of-?????"])
    (tmp_path / "a-00001-of-00003").touch()
    assert len(expand_paths([f"{tmp_path}/a@3", f"{tmp_path}/a-00000*"])) == 4
    with pytest.raises(DataError, match="no file matches"):
        expand_paths([f"{tmp_path}/b*"])
    with pytest.raises(DataError, match="no input_path"):
        expand_paths([])


def test_the_index_is_not_found_by_the_users_own_glob(tmp_path: Path) -> None:
    for shard in range(2):
        write_records(tmp_path / f"a.record-{shard:05d}-of-00002", [b"x"])
    for _ in range(2):
        assert [len(TFRecordFile(path)) for path in expand_paths([f"{tmp_path}/a.record-*"])] == [1, 1]


def test_index_lives_in_the_cache_where_the_folder_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boxwright.data.shard_files as module

    write_records(tmp_path / "a.record", [b"x"])
    write = module.write_whole

    def read_only(path: Path, content: bytes) -> Path:
        if path.parent == tmp_path:
            raise OutputError(f"{path}: could not be written: Read-only file system")
        return write(path, content)

    monkeypatch.setattr(module, "write_whole", read_only)
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    assert len(TFRecordFile(tmp_path / "a.record")) == 1
    assert len(list((tmp_path / "cache").glob("*.index"))) == 1


def test_gzip_of_several_streams_is_read_whole(tmp_path: Path) -> None:
    write_records(tmp_path / "a", [b"one"], "gzip")
    write_records(tmp_path / "b", [b"two", b"three"], "gzip")
    (tmp_path / "c").write_bytes((tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes())
    file = TFRecordFile(tmp_path / "c")
    assert [file[i] for i in range(len(file))] == [b"one", b"two", b"three"]


def test_index_is_kept_and_renewed(tmp_path: Path) -> None:
    path = tmp_path / "a.record"
    write_records(path, [b"one", b"two"])
    assert [TFRecordFile(path)[i] for i in range(2)] == [b"one", b"two"]
    index = tmp_path / ".a.record.index"
    assert index.is_file()
    index.write_bytes(b"rubbish")
    assert len(TFRecordFile(path)) == 2
    write_records(path, [b"1", b"2", b"three"])
    os.utime(path, ns=(1, 1))
    assert TFRecordFile(path)[2] == b"three"


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_round_trip_of_records(tmp_path: Path, compression: Any) -> None:
    records = [b"", b"x" * 100_000, bytes(range(256))]
    assert write_records(tmp_path / "r", records, compression) == 3
    file = pickle.loads(pickle.dumps(TFRecordFile(tmp_path / "r")))
    assert [file[i] for i in range(3)] == records


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A file of 200 MB is indexed and read at both ends in a process that never holds 50 MB more."""
    path = tmp_path / "big.record"
    block = os.urandom(1 << 20)
    write_records(path, (block for _ in range(200)))
    code = f"""
import resource
from boxwright.data.tfrecord import TFRecordFile
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
file = TFRecordFile({str(path)!r})
assert len(file) == 200 and len(file[199]) == len(file[0]) == 1 << 20
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 50 * 1024
    shutil.rmtree(tmp_path)


def test_bad_examples(tmp_path: Path) -> None:
    good = TFRecordDataset([RECORDS / "shapes.record"], CATEGORIES)
    record = good.files[0][0]
    features = read_features(record, "here")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"image/encoded": []}, "no image/encoded"),
        ({"image/encoded": [b"not an image"]}, "not an image of a known format"),
        ({"image/encoded": [b""]}, "the image is empty"),
        ({"image/encoded": [features["image/encoded"][0][:200]]}, "cannot be decoded"),
        ({"image/object/bbox/xmin": [0.1]}, "xmin, ymin, xmax, ymax have"),
        ({"image/object/class/text": [b"circle"]}, "class/text has 1 values for 3 boxes"),
        ({"image/object/weight": [1.0]}, "weight has 1 values for 3 boxes"),
    ]

    for change, wanted in cases:
        with pytest.raises(DataError, match=wanted):
            decode_example({**features, **change}, CATEGORIES, "here")
    with pytest.raises(DataError, match="not a tf.train.Example"):
        read_features(b"\xff\xff\xff", "here")


def test_encoding_is_read_back() -> None:
    dataset = TFRecordDataset([RECORDS / "shapes.record"], CATEGORIES, RecordFields(masks="png"))

    sample = dataset[0]
    record = encode_example(sample, dataset.encoded(0)[0], CATEGORIES)
    again = decode_example(read_features(record, "here"), CATEGORIES, "here", RecordFields(masks="png"))
    np.testing.assert_array_equal(again.boxes, sample.boxes)
    for name in ("image", "labels", "weights", "difficult", "is_crowd", "group_of", "areas", "masks"):
        assert np.array_equal(getattr(again, name), getattr(sample, name)), name
    assert struct.pack("<Q", 1) != record[:8]


def test_depths_and_tracks_of_records_with_tensorflows_keys(tmp_path: Path) -> None:
    """They follow their objects and points: through a flip, and when an object is left out."""
    from boxwright.data.augmentation.functional.geometry import mirror, quarter_turn
    from boxwright.data.example_messages import Example
    from boxwright.data.image_io import encode_png

    example = Example()
    feature = example.features.feature
    feature["image/encoded"].bytes_list.value.append(encode_png(np.zeros((20, 40, 3), np.uint8)))
    for side, values in (("xmin", (0.1, 0.5)), ("ymin", (0.1, 0.2)), ("xmax", (0.4, 0.9)), ("ymax", (0.6, 0.7))):
        feature[f"image/object/bbox/{side}"].float_list.value.extend(values)
    feature["image/object/class/text"].bytes_list.value.extend([b"circle", b"square"])
    feature["image/object/track/label"].int64_list.value.extend([7, 9])
    feature["image/object/keypoint/x"].float_list.value.extend([0.1, 0.2, 0.6, 0.8])
    feature["image/object/keypoint/y"].float_list.value.extend([0.2, 0.3, 0.4, 0.5])
    feature["image/object/keypoint/z"].float_list.value.extend([1.5, 2.5, 3.5, 4.5])
    feature["image/object/keypoint/z/weights"].float_list.value.extend([1.0, 0.0, 0.5, 1.0])
    wanted = RecordFields(num_keypoints=2, keypoint_depths=True, track_ids=True)
    write_records(tmp_path / "a.record", [example.SerializeToString()])
    sample = TFRecordDataset([tmp_path / "a.record"], CATEGORIES, wanted)[0]
    for flipped in (mirror(sample, 0, [1, 0]), quarter_turn(sample, [1, 0])):
        assert flipped.keypoint_depths is not None
        assert flipped.keypoint_depths.tolist() == [[2.5, 1.5], [4.5, 3.5]]
        assert flipped.keypoint_depth_weights is not None
        assert flipped.keypoint_depth_weights.tolist() == [[0, 1], [1, 0.5]]
        assert flipped.track_ids is not None
        assert flipped.track_ids.tolist() == [7, 9]
    second = sample.keep(np.array([1]))
    assert second.keypoint_depths is not None
    assert second.keypoint_depths.tolist() == [[3.5, 4.5]]
    # Written and read again, and skipped unless asked for.
    record = encode_example(sample, encode_png(sample.image), CATEGORIES)
    write_records(tmp_path / "b.record", [record])
    again = TFRecordDataset([tmp_path / "b.record"], CATEGORIES, wanted)[0]
    assert again.keypoint_depths is not None
    assert again.keypoint_depths.tolist() == [[1.5, 2.5], [3.5, 4.5]]
    assert again.track_ids is not None
    assert again.track_ids.tolist() == [7, 9]
    plain = TFRecordDataset([tmp_path / "b.record"], CATEGORIES)[0]
    assert plain.track_ids is None
    assert plain.keypoint_depths is None
    # Without depths TensorFlow has zeros, with weights of zero.
    for key in ("image/object/keypoint/z", "image/object/keypoint/z/weights"):
        del feature[key]
    write_records(tmp_path / "c.record", [example.SerializeToString()])
    without = TFRecordDataset([tmp_path / "c.record"], CATEGORIES, wanted)[0]
    assert without.keypoint_depths is not None
    assert not without.keypoint_depths.any()
    assert without.keypoint_depth_weights is not None
    assert not without.keypoint_depth_weights.any()


@pytest.mark.parametrize(
    ("key", "values", "wanted"),
    [
        ("image/object/keypoint/z", [1.0], "has 1 values for 2 boxes of 3 keypoints"),
        ("image/object/keypoint/z/weights", [float("nan")] * 9, "a value is not finite"),
        ("image/object/track/label", [1], "has 1 values for 2 boxes"),
        ("image/object/track/label", [], "has 0 values for 2 boxes"),
    ],
)
def test_depths_and_tracks_that_do_not_fit(key: str, values: list[float], wanted: str) -> None:
    features: dict[str, Any] = dict(read_features(TFRecordFile(RECORDS / "shapes.record")[0], "here"))
    count = len(features["image/object/bbox/xmin"])
    given = {"image/object/track/label": list(range(count)), key: values}
    with pytest.raises(DataError, match=wanted.replace("2 boxes", f"{count} boxes")):
        every = RecordFields(num_keypoints=3, keypoint_depths=True, track_ids=True)
        decode_example({**features, **given}, CATEGORIES, "here", every)
