"""DensePose's points: read, moved with the image, batched, and every way they can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat
from torchvision.transforms import v2

from boxwright.base.drawing import Captions, label_color
from boxwright.base.errors import DataError
from boxwright.config.load import parse_message
from boxwright.config.support import contradictions
from boxwright.data.augmentation.crop import crop
from boxwright.data.augmentation.flip import RandomHorizontalFlip, RandomRotation90, RandomVerticalFlip
from boxwright.data.augmentation.functional import warp
from boxwright.data.augmentation.functional.compose import overlay
from boxwright.data.augmentation.functional.geometry import pad, resize
from boxwright.data.augmentation.mosaic import CopyPaste
from boxwright.data.augmentation.user_transforms import TorchvisionTransform, albumentations_transform
from boxwright.data.batch import collate, to_input
from boxwright.data.coco import CocoDataset, coco_annotation
from boxwright.data.convert import encode_example, write_tfrecords, write_voc
from boxwright.data.dense_pose import SurfaceSymmetry, read_symmetry
from boxwright.data.image_io import encode_png
from boxwright.data.label_map import load_label_map
from boxwright.data.open_dataset import open_dataset
from boxwright.data.tf_example import RecordFields, decode_example, read_features
from boxwright.data.tfrecord import TFRecordFile, write_records
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.evaluation.pictures import draw_detections, draw_sample, surface_points
from boxwright.nn.preprocessing import FixedShapeResizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation import build_steps
from boxwright.pipeline.input_reader import build_dataset
from boxwright.types import Categories, Category, Detections, Sample
from boxwright.types.dense_pose import KNOWN, MIRRORED_PARTS, PARTS
from tests.conftest import GOLDEN

RNG = np.random.default_rng(0)
PERSON = Categories((Category(0, 1, "person"),))
KEY = "image/object/densepose/"
# Two people in an image 10 wide and 6 high; the second has one point.
POINTS = np.array(
    [
        [[2, 1, 1, 2, 0.25, 0.5], [6, 3, 1, 1, 0.75, 0.125]],
        [[9, 5, 1, 23, 1, 0], [0, 0, 0, 0, 0, 0]],
    ],
    np.float32,
)


def sample() -> Sample:
    boxes = np.array([[1, 0, 7, 4], [8, 3, 10, 6]], np.float32)
    return Sample(np.zeros((6, 10, 3), np.uint8), boxes, np.zeros(2, np.int64), dense_pose=POINTS)


def points_of(found: Sample) -> list[Any]:
    assert found.dense_pose is not None
    return np.round(found.dense_pose, 5).tolist()


def record(**changes: Any) -> dict[str, Any]:
    """Return the features that TensorFlow's converter of COCO writes for the two people."""
    features: dict[str, Any] = {
        "image/encoded": [encode_png(np.zeros((6, 10, 3), np.uint8))],
        "image/object/bbox/xmin": [0.1, 0.8],
        "image/object/bbox/xmax": [0.7, 1.0],
        "image/object/bbox/ymin": [0.0, 0.5],
        "image/object/bbox/ymax": [4 / 6, 1.0],
        "image/object/class/text": [b"person", b"person"],
        f"{KEY}num": [2, 1],
        f"{KEY}part_index": [2, 1, 23],
        f"{KEY}x": [0.2, 0.6, 0.9],
        f"{KEY}y": [1 / 6, 0.5, 5 / 6],
        f"{KEY}u": [0.5, 0.125, 0],
        f"{KEY}v": [0.25, 0.75, 1],
    }
    return features | {f"{KEY}{name}": values for name, values in changes.items()}


DENSE = RecordFields(dense_pose=True)


def test_they_are_read_from_records_if_asked_for() -> None:
    assert decode_example(record(), PERSON, "r").dense_pose is None
    assert points_of(decode_example(record(), PERSON, "r", DENSE)) == POINTS.tolist()


def test_a_record_without_them_has_none() -> None:
    without = {key: values for key, values in record().items() if not key.startswith(KEY)}
    found = decode_example(without, PERSON, "r", DENSE).dense_pose
    assert found is not None
    assert found.shape == (2, 0, 6)
    for path in ("shapes.record", "shapes.gz.record"):
        features = read_features(TFRecordFile(GOLDEN / "records" / path)[0], "r")
        recorded = decode_example(features, load_label_map(GOLDEN / "records/label_map.pbtxt"), "r", DENSE).dense_pose
        assert recorded is not None
        assert recorded.shape == (3, 0, 6)


def test_a_record_that_is_written_reads_the_same() -> None:
    written = encode_example(sample(), encode_png(sample().image), PERSON)
    assert points_of(decode_example(read_features(written, "r"), PERSON, "r", DENSE)) == POINTS.tolist()
    # Points that left the image are not written.
    cut = crop(sample(), (4, 0, 10, 6), np.ones(2, np.bool_), clip_boxes=True)
    again = decode_example(read_features(encode_example(cut, encode_png(cut.image), PERSON), "r"), PERSON, "r", DENSE)
    assert points_of(again) == [[[2, 3, 1, 1, 0.75, 0.125]], [[5, 5, 1, 23, 1, 0]]]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"num": [2]}, "densepose/num has 1 values for 2 boxes"),
        ({"num": [4, -1]}, "densepose/num: a box has -1 points"),
        (
            {"num": [2**62, 2**62]},
            "part_index has 3 values for 9223372036854775808 points in image/object/densepose/num",
        ),
        ({"u": [0.5, 0.5]}, "densepose/u has 2 values for 3 points"),
        ({"part_index": [2, 1, 24]}, "DensePose has the part 24; there are 0 to 23"),
        ({"part_index": [2, -1, 3]}, "DensePose has the part -1; there are 0 to 23"),
        ({"x": [0.2, np.nan, 0.9]}, "DensePose's x of point 1 is not finite"),
        ({"v": [0.2, 0.1, np.inf]}, "DensePose's v of point 2 is not finite"),
        ({"x": [0.2, 3e38, 0.9]}, "DensePose's x of point 1 is not finite"),
        ({"y": [b"0.2"]}, "expected numbers, found the text"),
        ({"num": [1.5, 1.5]}, "expected a whole number"),
    ],
)
def test_wrong_records(changes: dict[str, Any], wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        decode_example(record(**changes), PERSON, "r", DENSE)


def test_padding_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_MAX_SURFACE_POINTS", "3")
    with pytest.raises(
        DataError, match="4 DensePose points of an image, with their padding, are more than the 3 allow"
    ):
        decode_example(record(), PERSON, "r", DENSE)


def coco(folder: Path, *people: dict[str, Any]) -> CocoDataset:
    Image.new("RGB", (10, 6)).save(folder / "a.png")
    rows = [{"image_id": 1, "category_id": 1, "bbox": [1, 0, 6, 4], **one, "id": n} for n, one in enumerate(people)]
    content = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "annotations": rows,
        "categories": [{"id": 1, "name": "person"}],
    }
    (folder / "coco.json").write_text(json.dumps(content))
    return CocoDataset(folder / "coco.json", dense_pose=True)


DP = {"dp_I": [3.0, 2], "dp_x": [64, 300], "dp_y": [128, -1], "dp_U": [0.5, 0.125], "dp_V": [0.25, 0.75]}


def test_they_are_read_from_coco(tmp_path: Path) -> None:
    """Places are in 256ths of the box, at most on its border; parts count from 1."""
    found = coco(tmp_path, DP, {})[0]
    assert points_of(found) == [
        [[1 + 6 / 4, 2, 1, 2, 0.25, 0.5], [7, 0, 1, 1, 0.75, 0.125]],
        [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]],
    ]
    assert CocoDataset(tmp_path / "coco.json")[0].dense_pose is None


def test_what_is_written_for_coco_reads_the_same(tmp_path: Path) -> None:
    """Places inside the box; parts and coordinates are kept, and an object without points has empty lists."""
    one = sample()
    one.track_ids = np.array([4, 5])
    rows = [coco_annotation(one, number, PERSON.by_label(0)) for number in range(2)]
    assert rows[0]["dp_I"] == [3, 2]
    assert rows[0]["dp_x"] == [round(1 / 6 * 256, 3), round(5 / 6 * 256, 3)]
    assert [row["track_id"] for row in rows] == [4, 5]
    again = coco(tmp_path, *json.loads(json.dumps(rows)))[0].dense_pose
    assert again is not None
    np.testing.assert_allclose(again, POINTS, atol=1e-3)


def test_coco_is_converted_with_its_points_and_tracks(tmp_path: Path) -> None:
    coco(tmp_path, DP | {"track_id": 4}, {"track_id": 5})
    opened = open_dataset(tmp_path / "coco.json")
    (tmp_path / "out").mkdir()
    write_tfrecords(opened, tmp_path / "out" / "a.record")
    fields = RecordFields(dense_pose=True, track_ids=True)
    found = TFRecordDataset([tmp_path / "out" / "a.record"], opened.categories, fields)[0]
    assert points_of(found) == points_of(opened[0])
    assert found.track_ids is not None
    assert found.track_ids.tolist() == [4, 5]
    dropped = "are dropped: VOC cannot represent them"
    with (
        pytest.warns(UserWarning, match=f"points of DensePose {dropped}"),
        pytest.warns(UserWarning, match=f"tracks {dropped}"),
    ):
        write_voc(opened, tmp_path / "voc")
    coco(tmp_path, {})
    plain = open_dataset(tmp_path / "coco.json")[0]
    assert plain.dense_pose is None
    assert plain.track_ids is None


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"dp_U": [0.5]}, "annotation 0: DensePose's lists have different lengths: 2 dp_I, 2 dp_x, 2 dp_y, 1 dp_U, 2"),
        ({"dp_I": [25, 2]}, "annotation 0: dp_I: there are parts 1 to 24, found 25"),
        ({"dp_I": [1.5, 2]}, "annotation 0: dp_I: there are parts 1 to 24, found 1.5"),
        ({"dp_I": 3}, "annotation 0: dp_I: expected a list of numbers, found 3"),
        ({"dp_V": ["a", 1]}, "annotation 0: dp_V: expected a number, found 'a'"),
        ({"dp_x": [1e999, 1]}, "annotation 0: dp_x: expected a finite number"),
        ({"dp_V": [1e50, 0]}, "DensePose's v of point 0 is not finite"),
    ],
)
def test_wrong_coco_annotations(tmp_path: Path, changes: dict[str, Any], wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        _ = coco(tmp_path, DP | changes)[0]


def tables(name: str, weight: int) -> NDArray[np.float32]:
    """Return a table for each part, of which no two places have the same coordinate; [24, 256, 256]."""
    part, v, u = np.meshgrid(np.arange(24), np.arange(256), np.arange(256), indexing="ij")
    return np.asarray((part * weight + (v if name == "v" else u)) / 512, np.float32)


SYMMETRY = SurfaceSymmetry(np.stack([tables("v", 1), tables("u", 2)], -1))
# Right hand to left hand, the front of the torso to itself, left face to right face.
MIRRORED = [
    [3, (2 + 64) / 512, (4 + 128) / 512],
    [1, (1 + 192) / 512, (2 + 32) / 512],
    [22, (23 + 255) / 512, (46 + 0) / 512],
]


@pytest.mark.parametrize(
    ("transform", "places", "surface"),
    [
        (RandomHorizontalFlip(1.0, (), SYMMETRY), [[8, 1], [4, 3], [1, 5]], MIRRORED),
        (RandomVerticalFlip(1.0, (), SYMMETRY), [[2, 5], [6, 3], [9, 1]], MIRRORED),
        (RandomRotation90(1.0), [[1, 8], [3, 4], [5, 1]], POINTS[[0, 0, 1], [0, 1, 0], 3:].tolist()),
    ],
)
def test_flips_and_turns_by_hand(transform: Callable[..., Sample], places: list[Any], surface: list[Any]) -> None:
    found = transform(sample(), RNG).dense_pose
    assert found is not None
    known = found[found[..., KNOWN] > 0]
    assert known[:, :2].tolist() == places
    np.testing.assert_allclose(known[:, 3:], surface, atol=1e-6)
    assert found[1, 1, KNOWN] == 0, "padding stays padding"


@pytest.mark.parametrize("flip", [RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0)])
def test_a_flip_needs_the_symmetry(flip: RandomHorizontalFlip) -> None:
    with pytest.raises(
        DataError, match="a flip needs to know where DensePose's coordinates lie .* dense_pose_symmetry"
    ):
        flip(sample(), RNG)
    empty = sample()
    empty.dense_pose = POINTS[:, :0]
    assert flip(empty, RNG).dense_pose is not None


def test_parts_in_a_mirror() -> None:
    assert [PARTS[part] for part in MIRRORED_PARTS[[0, 2, 4, 7, 22]]] == [
        "torso_back",
        "left_hand",
        "right_foot",
        "right_upper_leg_back",
        "left_face",
    ]
    assert MIRRORED_PARTS[MIRRORED_PARTS].tolist() == list(range(24))


WINDOW = (4, 0, 10, 6)
BOTH = np.ones(2, np.bool_)


@pytest.mark.parametrize(
    ("change", "places"),
    [
        (lambda s: crop(s, WINDOW, BOTH, clip_boxes=True), [[-2, 1, 0], [2, 3, 1], [5, 5, 1]]),
        (lambda s: crop(s, WINDOW, BOTH, clip_boxes=False), [[-2, 1, 1], [2, 3, 1], [5, 5, 1]]),
        (lambda s: resize(s, 12, 30), [[6, 2, 1], [18, 6, 1], [27, 10, 1]]),
        (lambda s: pad(s, np.zeros((9, 12, 3), np.uint8), (1, 2)), [[3, 3, 1], [7, 5, 1], [10, 7, 1]]),
        (lambda s: warp.shift(s, 3.0, 0), [[-1, 1, 0], [3, 3, 1], [6, 5, 1]]),
        (TorchvisionTransform(v2.Pad([1, 2, 0, 0])), [[3, 3, 1], [7, 5, 1], [10, 7, 1]]),
        (lambda s: to_input(s, FixedShapeResizer(12, 30)), [[6, 2, 1], [18, 6, 1], [27, 10, 1]]),
    ],
    ids=["crop", "crop unclipped", "resize", "pad", "shift", "torchvision", "network's input"],
)
def test_moved_with_the_image(change: Callable[..., Sample], places: list[Any]) -> None:
    found = (change(sample(), RNG) if isinstance(change, TorchvisionTransform) else change(sample())).dense_pose
    assert found is not None
    assert np.round(found[[0, 0, 1], [0, 1, 0], :3], 4).tolist() == places
    assert found[..., 3:].tolist() == POINTS[..., 3:].tolist()


def test_moved_by_albumentations() -> None:
    library = pytest.importorskip("albumentations")
    one = sample()
    one.keypoints = np.array([[[3, 2, 1]], [[9, 4, 1]]], np.float32)
    found = albumentations_transform(library.Crop(4, 0, 10, 6, p=1.0))(one, RNG)
    assert found.dense_pose is not None
    assert found.keypoints is not None
    assert found.dense_pose[[0, 0, 1], [0, 1, 0], :3].tolist() == [[-2, 1, 0], [2, 3, 1], [5, 5, 1]]
    assert found.keypoints[:, 0].tolist() == [[-1, 2, 0], [5, 4, 1]]


def test_an_object_pasted_over_points_hides_them() -> None:
    over = Sample(np.full((6, 10, 3), 9, np.uint8), np.array([[5, 2, 8, 4]]), np.zeros(1), dense_pose=POINTS[:1])
    found = CopyPaste(lambda _: over, 1.0, 1, 0.1)(sample(), np.random.default_rng(0)).dense_pose  # type: ignore[arg-type]
    assert found is not None
    assert found[..., KNOWN].tolist() == [[1, 0], [1, 0], [1, 1]]


def test_images_with_different_numbers_of_points_are_joined_and_batched() -> None:
    fewer = sample().keep(np.array([1]))
    fewer.dense_pose = POINTS[1:, :1]
    joined = overlay(sample().image, (sample(), fewer)).dense_pose
    assert joined is not None
    assert joined.tolist() == [*POINTS.tolist(), POINTS[1].tolist()]
    targets = collate([to_input(one, FixedShapeResizer(6, 10)) for one in (sample(), fewer)]).targets
    assert targets.dense_pose is not None
    assert targets.dense_pose.shape == (2, 8, 2, 6)
    assert targets.dense_pose[0, :2].tolist() == POINTS.tolist()
    assert targets.dense_pose[1, 0].tolist() == POINTS[1].tolist()
    assert not targets.dense_pose[1, 1:].any()
    padded = targets.padded_to(9).dense_pose
    assert padded is not None
    assert torch.equal(padded[:, :8], targets.dense_pose)
    assert not padded[:, 8].any()


def written(folder: Path, **changes: Any) -> Path:
    """Write the file as DensePose does: coordinates of 0..1 in bytes, in a table of each part."""
    content = {name: np.empty((1, 24), object) for name in ("U_transforms", "V_transforms")}
    v, u = np.meshgrid(np.arange(256), np.arange(256), indexing="ij")
    for part in range(24):
        content["U_transforms"][0, part] = ((2 * part + u) % 256).astype(np.uint8)
        content["V_transforms"][0, part] = ((part + v) % 256).astype(np.uint8)
    savemat(path := folder / "UV_symmetry_transforms.mat", content | changes)
    return path


def test_the_symmetry_is_read_from_its_file(tmp_path: Path) -> None:
    step = f"random_horizontal_flip {{ probability: 1 dense_pose_symmetry: '{written(tmp_path)}' }}"
    chain = build_steps([parse_message(step, m.PreprocessingStep)])
    found = chain(sample(), RNG).dense_pose
    assert found is not None
    # The points lie at the 64th and 128th step of v and u, at 192 and 32, and at 255 and 0.
    mirrored = [[3, (2 + 64) / 255, (4 + 128) / 255], [1, (1 + 192) / 255, (2 + 32) / 255], [22, 22 / 255, 46 / 255]]
    np.testing.assert_allclose(found[found[..., KNOWN] > 0][:, 3:], mirrored, atol=1e-6)


def test_a_wrong_file_of_the_symmetry(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no.mat: no such file; UV_symmetry_transforms.mat lies in object_detection"):
        read_symmetry(tmp_path / "no.mat")
    with pytest.raises(DataError, match="expected 24 tables of 256×256 in U_transforms"):
        read_symmetry(written(tmp_path, U_transforms=np.zeros((256, 256))))
    beyond = np.empty((1, 24), object)
    beyond[0] = [np.full((256, 256), -1 if part else np.nan) for part in range(24)]
    with pytest.raises(DataError, match="expected coordinates of 0 to 255"):
        read_symmetry(written(tmp_path, V_transforms=beyond))
    (tmp_path / "x.mat").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="x.mat: "):
        read_symmetry(tmp_path / "x.mat")


CONFIG = """
    model { ssd { num_classes: 1 } }
    train_config { data_augmentation_options { random_horizontal_flip { %s } } }
    train_input_reader { load_dense_pose: true %s }
"""
RECORDS_READER = "label_map_path: 'map' tf_record_input_reader { input_path: 'a.record' }"


@pytest.mark.parametrize(
    ("flip", "reader", "wanted"),
    [
        ("", RECORDS_READER, "load_dense_pose: a flip of DensePose's points has to know the body's symmetry"),
        ("", "yolo_input_reader { data: 'a' }", "load_dense_pose: it is read from tf_record_input_reader and coco"),
        ("dense_pose_symmetry: 'a.mat'", RECORDS_READER, ""),
        ("probability: 0", RECORDS_READER, ""),
    ],
)
def test_configurations(flip: str, reader: str, wanted: str) -> None:
    config = parse_message(CONFIG % (flip, reader), m.TrainEvalPipelineConfig)
    found = [str(error) for error in contradictions(config) if "dense" in str(error)]
    assert any(wanted in one for one in found) if wanted else not found


def test_readers_are_built(tmp_path: Path) -> None:
    features = encode_example(sample(), encode_png(sample().image), PERSON)
    write_records(tmp_path / "a.record", [features])
    (tmp_path / "map").write_text("item { id: 1 name: 'person' }")
    text = f"load_dense_pose: true label_map_path: '{tmp_path}/map' tf_record_input_reader {{ input_path: '{tmp_path}/a.record' }}"
    found = build_dataset(parse_message(text, m.InputReader), "train_input_reader")[0]
    assert points_of(found) == POINTS.tolist()
    coco(tmp_path, DP)
    text = f"load_dense_pose: true coco_input_reader {{ annotations: '{tmp_path}/coco.json' }}"
    assert build_dataset(parse_message(text, m.InputReader), "train_input_reader")[0].dense_pose is not None


def test_points_are_drawn_in_the_colors_of_their_parts() -> None:
    """An image of 100 pixels is drawn four times as large; a point of a radius of 1 lies on its place."""
    one = sample()
    one.image = np.zeros((100, 100, 3), np.uint8)
    one.boxes = one.boxes * 0
    points = POINTS * np.array([10, 10, 1, 1, 1, 1], np.float32)
    points[0, 1, KNOWN] = 0
    one.dense_pose = points
    drawn = draw_sample(one, Categories((Category(0, 1, ""),)))
    assert drawn.shape == (400, 400, 3)
    assert drawn[40, 80].tolist() == list(label_color(2))
    assert drawn[200, 360].tolist() == list(label_color(23))
    assert not drawn[120, 240].any(), "an unknown point is not"
    one.dense_pose = np.full((2, 1, 6), np.nan, np.float32)
    one.dense_pose[..., KNOWN] = 1
    assert draw_sample(one, PERSON).shape == (400, 400, 3)


def test_parts_of_detections_are_drawn_where_the_map_has_them() -> None:
    boxes = np.array([[10, 20, 30, 60]], np.float32)
    parts = np.array([[[0, 3], [24, 0]]], np.uint8)
    found = surface_points(boxes, parts)
    assert found.tolist() == [
        [[15, 30, 0, 0, 0, 0], [25, 30, 1, 2, 0, 0], [15, 50, 1, 23, 0, 0], [25, 50, 0, 0, 0, 0]],
    ]
    objects = Detections(boxes, np.ones(1, np.float32), np.zeros(1, np.int64), (100, 100), PERSON, surface_parts=parts)
    drawn = draw_detections(np.zeros((100, 100, 3), np.uint8), objects, 0.5, 9, Captions(names=False, scores=False))
    assert drawn[120, 100].tolist() == list(label_color(2))
    assert drawn[200, 60].tolist() == list(label_color(23))
    assert not drawn[120, 60].any()
