"""Data written as WebDataset's archives and as Parquet: the same pictures and objects, on the disk and at an address."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from boxwright.base.errors import ConfigError, DataError, OutputError
from boxwright.data.coco_masks import decode_mask
from boxwright.data.dataset import Dataset
from boxwright.data.image_io import decode_image, encode_picture
from boxwright.data.label_map import load_label_map
from boxwright.data.open_dataset import open_dataset
from boxwright.data.shapes import ShapesDataset
from boxwright.data.write_rows import write_parquet, write_web_dataset
from boxwright.types import Categories, Category, Sample
from tests.remote_files import Bucket, open_bucket

ENDINGS = ("tar", "parquet")
POINTS = Categories((Category(0, 1, "cat", keypoints=("nose", "tail")), Category(1, 2, "dog")))


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with open_bucket(tmp_path / "cache") as bucket:
        yield bucket


def write(dataset: Dataset, target: str | Path, num_shards: int = 1) -> list[str]:
    if str(target).endswith(".tar"):
        return write_web_dataset(dataset, target, num_shards=num_shards)
    return write_parquet(dataset, target, num_shards=num_shards, masks=True)


@dataclass(frozen=True)
class Pictures:
    """Given samples and names of their files, PNG."""

    samples: tuple[Sample, ...]
    names: tuple[str, ...]
    categories: Categories = POINTS
    name: str = "pictures"

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]

    def encoded(self, index: int) -> tuple[bytes, str]:
        return encode_picture(self.samples[index].image, ".png"), self.names[index]


def two_animals() -> Sample:
    """A picture of 20 x 30 pixels with a cat, whose tail is not seen, and a crowd of dogs, which is difficult."""
    masks = np.zeros((2, 20, 30), np.uint8)
    masks[0, 2:12, 4:9] = masks[1, :3, :2] = 1
    return Sample(
        np.full((20, 30, 3), 7, np.uint8),
        boxes=np.array([[3.5, 2, 9.3, 12], [0, 0, 2, 3]], np.float32),
        labels=np.array([0, 1]),
        is_crowd=np.array([False, True]),
        difficult=np.array([False, True]),
        areas=np.array([50, 6], np.float32),
        masks=masks,
        keypoints=np.array([[[4, 3, 1], [0, 0, 0]], [[0, 0, 0], [0, 0, 0]]], np.float32),
        id="seventeen",
    )


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_round_trip_keeps_bytes_and_objects(ending: str, num_shards: int, tmp_path: Path, bucket: Bucket) -> None:
    shapes = ShapesDataset(10, seed=3, size=(61, 83))
    write(shapes, tmp_path / "data" / f"a.{ending}", num_shards)
    again = open_dataset(tmp_path / "data", load_masks=True)
    assert [item.name for item in again.categories] == [item.name for item in shapes.categories]
    assert len(again) == 10
    for index in range(10):
        assert again.encoded(index) == shapes.encoded(index)
        before, after = shapes[index], again[index]
        for name, values in before.of_objects().items():
            np.testing.assert_array_equal(values, getattr(after, name), name)
        assert after.image.shape == before.image.shape


def test_what_an_archive_has(tmp_path: Path) -> None:
    write(Pictures((two_animals(),), ("my.cat.PNG",)), tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert list(files) == ["000000000.png", "000000000.json"]
    assert (decode_image(files["000000000.png"], "") == 7).all()
    annotation = json.loads(files["000000000.json"])
    cat, dogs = annotation.pop("objects")
    assert annotation == {"image_id": "seventeen", "file_name": "my.cat.PNG", "height": 20, "width": 30}
    assert cat.pop("bbox") == pytest.approx([3.5, 2, 5.8, 10], abs=1e-6)
    assert int(decode_mask(cat.pop("segmentation"), (20, 30), "")[2:12, 4:9].sum()) == 50
    assert cat == {"category": "cat", "area": 50, "iscrowd": 0, "keypoints": [4, 3, 2, 0, 0, 0]}
    del dogs["segmentation"]
    assert dogs == {"bbox": [0, 0, 2, 3], "category": "dog", "area": 6, "iscrowd": 1, "difficult": 1}


def test_what_parquet_has(tmp_path: Path) -> None:
    write(Pictures((two_animals(),), ("my.cat.PNG",)), tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    (row,) = table.to_pylist()
    assert row["image"]["path"] == "my.cat.PNG"
    assert (row["image_id"], row["height"], row["width"]) == ("seventeen", 20, 30)
    objects = row["objects"]
    assert objects["category"] == [0, 1]
    assert objects["bbox"][1] == [0, 0, 2, 3]
    assert (objects["iscrowd"], objects["difficult"], objects["area"]) == ([0, 1], [0, 1], [50, 6])
    assert objects["keypoints"] == [[4, 3, 2, 0, 0, 0], None]
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["objects"]["category"] == [{"names": ["cat", "dog"], "_type": "ClassLabel"}]


@pytest.mark.parametrize("ending", ENDINGS)
def test_keypoints_flags_and_pictures_of_one_name(ending: str, tmp_path: Path, bucket: Bucket) -> None:
    empty = Sample(np.zeros((8, 9, 3), np.uint8), np.zeros((0, 4)), np.zeros(0), masks=np.zeros((0, 8, 9), np.uint8))
    dataset = Pictures((two_animals(), empty, two_animals()), ("a.png", "a.png", "b.png"))
    write(dataset, tmp_path / f"a.{ending}")
    first, second, _ = (again := open_dataset(tmp_path / f"a.{ending}", load_masks=True))
    assert load_label_map(tmp_path / "label_map.pbtxt") == again.categories
    assert first.keypoints is not None
    assert first.keypoints.tolist() == [[[4, 3, 1], [0, 0, 0]], [[0, 0, 0], [0, 0, 0]]]
    assert (first.difficult.tolist(), first.is_crowd.tolist()) == ([False, True], [False, True])
    assert (len(second.boxes), second.filename, second.image.shape) == (0, "a.png", (8, 9, 3))


def test_many_rows_are_in_groups(tmp_path: Path) -> None:
    write(ShapesDataset(300, seed=1, size=(8, 8)), tmp_path / "a.parquet")
    file = pq.ParquetFile(tmp_path / "a.parquet")
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [128, 128, 44]


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_shards_do_not_hold_is_said(ending: str, tmp_path: Path) -> None:
    sample = two_animals()
    sample.track_ids, sample.attributes, sample.attribute_names = np.array([1, 2]), np.array([[1], [2]]), ("blur",)
    with pytest.warns(UserWarning, match="are dropped: ") as warned:
        write(Pictures((sample,), ("a.png",)), tmp_path / f"a.{ending}")
    kinds = [str(warning.message).partition(" are")[0] for warning in warned]
    assert sorted(kinds) == ["attributes", "tracks"]


def objects(**columns: Any) -> dict[str, Any]:
    return {"bbox": [[1, 2, 3, 4]], "category": ["cat"], **columns}


def write_archive(path: Path, *annotations: dict[str, Any]) -> Path:
    """Write an archive of pictures of 8 x 9 pixels with annotations."""
    picture = encode_picture(np.zeros((8, 9, 3), np.uint8), ".png")
    with tarfile.open(path, "w") as archive:
        for number, annotation in enumerate(annotations):
            for name, content in ((f"{number}.png", picture), (f"{number}.json", json.dumps(annotation).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"keypoints": [[1, 2, 3]]}, "keypoints of object 0: expected x, y, v of 2 keypoints, found 3"),
        ({"keypoints": ["nose"]}, "keypoints of object 0: expected x, y, v of 2 keypoints, found nose"),
        ({"keypoints": [None, None]}, "1 boxes, but keypoints of 2"),
        ({"segmentation": [None]}, "object 0 has no segmentation"),
        ({"segmentation": [[[1, 2]]]}, "object 0: segmentation: polygon 0: expected"),
        ({"area": ["large"]}, "objects: area"),
    ],
)
def test_outlines_and_keypoints_that_are_none(columns: dict[str, Any], problem: str, tmp_path: Path) -> None:
    outline = {"segmentation": [[[1, 1, 5, 1, 5, 5]]]}
    archive = write_archive(tmp_path / "a.tar", {"objects": objects(**{**outline, **columns})})
    (tmp_path / "label_map.pbtxt").write_text(
        "item { id: 1 name: 'cat' keypoints { id: 0 label: 'nose' } keypoints { id: 1 label: 'tail' } }"
    )
    with pytest.raises(DataError, match=problem):
        open_dataset(archive, load_masks=True)[0]


def test_classes_that_archives_name_themselves(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "a.tar", {"objects": objects(category=["dog"])}, {"objects": objects()})
    dataset = open_dataset(archive)
    assert [item.name for item in dataset.categories] == ["cat", "dog"]
    assert [sample.labels.tolist() for sample in dataset] == [[1], [0]]  # type: ignore[attr-defined]
    write_archive(tmp_path / "a.tar", {"objects": objects(category=[3])})
    with pytest.raises(DataError, match="1 objects have class numbers but no names; put a label_map.pbtxt beside"):
        open_dataset(archive)


def test_boxes_of_another_kind_are_refused_and_can_be_said(tmp_path: Path) -> None:
    corners = [[5, 4, 8, 7], [4, 5, 9, 8], [6, 1, 8, 7], [5, 5, 7, 8]]
    archive = write_archive(tmp_path / "a.tar", *({"objects": objects(bbox=[box])} for box in corners * 3))
    with pytest.raises(DataError, match="--labels_are corners reads them so"):
        open_dataset(archive)
    from boxwright.base.read_settings import LabelConvention

    assert open_dataset(archive, labels_are=LabelConvention.CORNERS)[0].boxes.tolist() == [[5, 4, 8, 7]]


@pytest.mark.parametrize("ending", [*ENDINGS, "record"])
def test_a_conversion_to_an_address(ending: str, tmp_path: Path, bucket: Bucket) -> None:
    from boxwright.data.convert import write_tfrecords

    shapes = ShapesDataset(7, seed=3, size=(24, 32))
    write_to: Callable[..., list[str]] = write_tfrecords if ending == "record" else write
    names = write_to(shapes, f"s3://b/d/a.{ending}", num_shards=3)
    assert sorted(names) == sorted(f"s3://b/d/{name}" for name in bucket.names("s3://b/d") if name != "label_map.pbtxt")
    assert bucket.writes[0] == "label_map.pbtxt"
    here = write_to(shapes, tmp_path / f"a.{ending}", num_shards=3)
    for name, path in zip(names, here, strict=True):
        assert bucket.files.cat_file(name.removeprefix("s3://")) == Path(path).read_bytes()
    if ending != "record":
        again = open_dataset("s3://b/d")
        assert [again[index].boxes.tolist() for index in range(7)] == [shapes[i].boxes.tolist() for i in range(7)]
        assert again.categories == load_label_map(tmp_path / "label_map.pbtxt")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_conversion_that_does_not_arrive_leaves_no_whole_set(ending: str, bucket: Bucket) -> None:
    write(ShapesDataset(7, seed=1, size=(24, 32)), f"s3://b/d/a.{ending}", 3)
    bucket.refusals = []
    put, arrived = bucket.put_file, []

    def put_some(path: str, address: str) -> None:
        if len(arrived) == 1:
            raise ConnectionResetError("reset")
        arrived.append(address)
        put(path, address)

    bucket.put_file = put_some  # type: ignore[method-assign]
    with pytest.raises(OutputError, match=rf"a-00001-of-00003\.{ending}: cannot be written, in 3 tries"):
        write(ShapesDataset(7, seed=2, size=(24, 32)), f"s3://b/d/a.{ending}", 3)
    with pytest.raises(DataError, match="1 of 3 shards are missing"):
        open_dataset("s3://b/d")
    bucket.put_file = put  # type: ignore[method-assign]
    write(ShapesDataset(7, seed=2, size=(24, 32)), f"s3://b/d/a.{ending}", 3)
    assert open_dataset("s3://b/d")[6].boxes.tolist() == ShapesDataset(7, seed=2, size=(24, 32))[6].boxes.tolist()


def test_a_label_map_of_other_classes_at_the_address(bucket: Bucket) -> None:
    bucket.put("s3://b/d/label_map.pbtxt", b"item { id: 1 name: 'tree' }")
    with pytest.raises(DataError, match=r"s3://b/d/label_map\.pbtxt already exists and has other classes"):
        write(ShapesDataset(2, seed=1, size=(24, 32)), "s3://b/d/a.tar")
    assert bucket.names("s3://b/d") == ["label_map.pbtxt"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_configuration_asks_for_masks_and_keypoints(ending: str, tmp_path: Path, bucket: Bucket) -> None:
    from boxwright.config.load import parse_message
    from boxwright.pipeline import messages as m
    from boxwright.pipeline.input_reader import build_dataset

    write(Pictures((two_animals(),), ("a.png",)), tmp_path / f"a.{ending}")
    reader = {"tar": "web_dataset", "parquet": "parquet"}[ending]
    text = (
        f'label_map_path: "{tmp_path}/label_map.pbtxt" {reader}_input_reader {{ input_path: "{tmp_path}/a.{ending}" }}'
    )
    plain = build_dataset(parse_message(text, m.InputReader), "train_input_reader")[0]
    assert plain.masks is None
    assert plain.keypoints is None
    wanted = build_dataset(
        parse_message(f"{text} load_instance_masks: true num_keypoints: 3", m.InputReader), "train_input_reader"
    )[0]
    assert wanted.masks is not None
    assert wanted.masks.sum((1, 2)).tolist() == [50, 6]
    assert wanted.keypoints is not None
    assert wanted.keypoints.tolist() == [[[4, 3, 1], [0, 0, 0], [0, 0, 0]], [[0, 0, 0]] * 3]
    with pytest.raises(DataError, match="its classes have 2 keypoints, but num_keypoints is 1"):
        build_dataset(parse_message(f"{text} num_keypoints: 1", m.InputReader), "train_input_reader")
    with pytest.raises(ConfigError, match="load_track_id: tracks are read from tf_record_input_reader and coco"):
        build_dataset(parse_message(f"{text} load_track_id: true", m.InputReader), "train_input_reader")
