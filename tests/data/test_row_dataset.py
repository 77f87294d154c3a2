"""WebDataset's archives and Parquet: samples, order, damage; the same on the disk and at an address."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from boxwright.base import remote
from boxwright.base.errors import DataError
from boxwright.data.augmentation.transform import Chain
from boxwright.data.batch import Batch
from boxwright.data.loader import TrainingExamples, training_batches
from boxwright.data.order import Interleaving, StreamSettings, sample_keys
from boxwright.data.row_dataset import RowDataset, open_parquet_rows, open_web_dataset
from boxwright.nn.preprocessing import FixedShapeResizer
from tests.data.shards import CLASSES, members, picture, rows, tar_bytes, write_parquet
from tests.remote_files import Bucket, open_bucket

# Shards of unequal sizes, one of them empty.
_SIZES = (5, 0, 9, 2)
_COUNT = sum(_SIZES)
Open = Callable[..., RowDataset]


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with open_bucket(tmp_path / "cache") as bucket:
        yield bucket


def write_shards(folder: Path) -> None:
    start = 0
    for number, size in enumerate(_SIZES):
        some = rows(start, size)
        write_parquet(folder / f"a-{number}.parquet", some, 2)
        (folder / f"a-{number}.tar").write_bytes(tar_bytes(members(some)))
        start += size


@pytest.fixture(params=["tar", "parquet", "s3 tar", "s3 parquet"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, bucket: Bucket) -> RowDataset:
    """The same samples, in either format, on the disk and at an address."""
    write_shards(tmp_path)
    for path in (*tmp_path.glob("*.tar"), *tmp_path.glob("*.parquet")):
        bucket.put(f"s3://b/{path.name}", path.read_bytes())
    place = "s3://b" if request.param.startswith("s3") else str(tmp_path)
    if request.param.endswith("tar"):
        return open_web_dataset([f"{place}/a-*.tar"], CLASSES)
    return open_parquet_rows([f"{place}/a-*.parquet"], None)


def batches(
    dataset: RowDataset, settings: StreamSettings, start: int = 0, count: int = 8
) -> list[tuple[tuple[str, ...], bytes]]:
    examples = TrainingExamples(dataset, Chain(()), FixedShapeResizer(16, 16), seed=0)
    found = list(islice(training_batches(examples, settings, start), count))
    assert all(isinstance(batch, Batch) for batch in found), found
    return [(batch.ids, batch.images.numpy().tobytes()) for batch in found]


def test_samples_are_what_was_written(opened: RowDataset) -> None:
    assert len(opened) == _COUNT
    assert opened.shard_sizes == (_SIZES,)
    assert [item.name for item in opened.categories] == ["cat", "dog"]
    for number in range(_COUNT):
        sample = opened[number]
        assert (sample.image == number).all()
        assert sample.image.shape == (20, 30, 3)
        assert sample.boxes.tolist() == [[number % 9, 1, number % 9 + 3, 5]]
        assert sample.labels.tolist() == [number % 2]
        assert (sample.id, sample.filename) == (f"image-{number}", f"{number}.png")
        assert opened.encoded(number) == (picture(number), f"{number}.png")


def test_batches_are_the_same_where_a_run_resumes(opened: RowDataset) -> None:
    settings = StreamSettings(3, interleaving=Interleaving(4, 2, 1), workers=0)
    whole = batches(opened, settings)
    assert len(set(whole)) > 5
    for batch in (1, 5, 7):
        assert batches(opened, settings, start=3 * batch, count=8 - batch) == whole[batch:]


@pytest.mark.parametrize("opened", ["tar", "s3 parquet"], indirect=True)
def test_batches_are_the_same_for_any_number_of_workers(opened: RowDataset) -> None:
    alone = batches(opened, StreamSettings(3, workers=0))
    assert [batches(opened, StreamSettings(3, workers=workers)) for workers in (1, 2)] == [alone, alone]


def test_an_epoch_has_each_sample_once_in_another_order(opened: RowDataset) -> None:
    settings = StreamSettings(1, interleaving=Interleaving(4, 2, 1))
    keys = [index for _, index in islice(sample_keys((_COUNT,), settings, 0, None, opened.shard_sizes), 2 * _COUNT)]
    assert sorted(keys[:_COUNT]) == sorted(keys[_COUNT:]) == list(range(_COUNT))
    assert keys[:_COUNT] != keys[_COUNT:]


@pytest.mark.parametrize("ending", ["tar", "parquet"])
def test_a_connection_that_is_cut_changes_nothing(
    ending: str, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "DELAYS", (0.0,) * 12)
    write_shards(tmp_path)
    open_rows: Open = open_web_dataset if ending == "tar" else open_parquet_rows
    for path in tmp_path.glob(f"*.{ending}"):
        bucket.put(f"s3://b/{path.name}", path.read_bytes())
    here = batches(open_rows([f"{tmp_path}/a-*.{ending}"], CLASSES), StreamSettings(3, workers=0))
    bucket.cuts = [ConnectionResetError("reset"), 17, EOFError("end"), 3] * 3
    assert batches(open_rows([f"s3://b/a-*.{ending}"], CLASSES), StreamSettings(3, workers=0)) == here
    assert not bucket.cuts


def test_a_group_of_rows_is_decoded_once_while_the_cache_holds_it(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    from boxwright.data import parquet

    decoded: list[int] = []
    decode = parquet._decode
    monkeypatch.setattr(parquet, "_decode", lambda file, group, to: decoded.append(group) or decode(file, group, to))
    write_parquet(tmp_path / "a.parquet", rows(0, 6), 3)
    dataset = open_parquet_rows([tmp_path / "a.parquet"], None)
    for number in (0, 5, 1, 4, 2, 3):
        dataset[number]
    assert decoded == [0, 1]
    for file in (tmp_path / "cache" / "remote").glob("*.arrow"):
        file.unlink()
    assert (dataset[4].image == 4).all()
    assert decoded == [0, 1, 1]


def test_rows_of_more_than_one_batch(tmp_path: Path, bucket: Bucket) -> None:
    write_parquet(tmp_path / "a.parquet", rows(0, 200), 150)
    dataset = open_parquet_rows([tmp_path / "a.parquet"], None)
    for number in (0, 63, 64, 127, 128, 149, 150, 199):
        assert (dataset[number].image == number).all()


def test_numbers_of_classes_are_those_of_each_file(tmp_path: Path, bucket: Bucket) -> None:
    write_parquet(tmp_path / "a.parquet", rows(0, 2), 2, ("cat", "dog"))
    write_parquet(tmp_path / "b.parquet", rows(0, 2), 2, ("dog", "cat"))
    dataset = open_parquet_rows([tmp_path / "a.parquet", tmp_path / "b.parquet"], None)
    assert [dataset[number].labels.tolist() for number in range(4)] == [[0], [1], [1], [0]]
    write_parquet(tmp_path / "c.parquet", rows(1, 1), 2, ())
    with pytest.raises(DataError, match="the files name no classes; set label_map_path"):
        open_parquet_rows([tmp_path / "c.parquet"], None)
    assert open_parquet_rows([tmp_path / "c.parquet"], CLASSES)[0].labels.tolist() == [0]  # an id of the label map


def test_a_class_that_the_label_map_lacks_is_dropped_and_said(tmp_path: Path, bucket: Bucket) -> None:
    write_parquet(tmp_path / "a.parquet", rows(1, 1), 2, ("cat", "bird"))
    with pytest.warns(UserWarning, match="class 'bird' is not in the label map; its boxes are dropped"):
        sample = open_parquet_rows([tmp_path / "a.parquet"], CLASSES)[0]
    assert (len(sample.boxes), sample.left_out) == (0, 1)
    write_parquet(tmp_path / "b.parquet", rows(1, 1), 2, ("cat",))
    with pytest.raises(DataError, match=r"b\.parquet: row 0: class 1: expected 0 to 0"):
        open_parquet_rows([tmp_path / "b.parquet"], CLASSES)[0]


@pytest.mark.parametrize(
    ("boxes_are", "box", "expected"),
    [
        ("xywh", [3, 2, 6, 10], [3, 2, 9, 12]),
        ("xyxy", [3, 2, 6, 10], [3, 2, 6, 10]),
        ("normalized_xywh", [0.1, 0.1, 0.2, 0.5], [3, 2, 9, 12]),
        ("normalized_xyxy", [0.1, 0.1, 0.2, 0.5], [3, 2, 6, 10]),
    ],
)
def test_what_the_numbers_of_boxes_are(
    boxes_are: str, box: list[float], expected: list[float], tmp_path: Path, bucket: Bucket
) -> None:
    (row,) = rows(0, 1)
    row["objects"]["bbox"] = [box]
    (tmp_path / "a.tar").write_bytes(tar_bytes(members([row])))
    dataset = open_web_dataset([tmp_path / "a.tar"], CLASSES, boxes_are=boxes_are)
    assert dataset[0].boxes[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_crowds_lists_of_objects_and_pictures_without_objects(tmp_path: Path, bucket: Bucket) -> None:
    files = [
        ("1.jpg", picture(1)),
        ("1.json", b'{"objects": [{"bbox": [1, 2, 3, 4], "category_id": 2, "iscrowd": 1}]}'),
        ("2.png", picture(2)),
        ("2.json", b'{"objects": []}'),
    ]
    (tmp_path / "a.tar").write_bytes(tar_bytes(files))
    first, second = open_web_dataset([tmp_path / "a.tar"], CLASSES)
    assert (first.labels.tolist(), first.is_crowd.tolist(), first.id) == ([1], [True], "a.tar:0")
    assert len(second.boxes) == 0


def test_archives_of_other_makes(tmp_path: Path, bucket: Bucket) -> None:
    """Long names, folders, a Mac's files, other files of a sample, compression."""
    import tarfile

    long = "folder/" * 30 + "17"
    files = [
        ("dataset.txt", b"hello"),
        ("._3.png", b"of a Mac"),
        ("3.png", picture(3)),
        ("3.seg.png", picture(0)),
        ("3.json", b'{"objects": []}'),
        ("3.cls", b"4"),
        (f"{long}.png", picture(17)),
        (f"{long}.json", b'{"objects": []}'),
    ]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        content = tar_bytes(files, format=form)
        (tmp_path / "a.tar").write_bytes(content)
        (tmp_path / "a.tar.gz").write_bytes(gzip.compress(content))
        for name in ("a.tar", "a.tar.gz"):
            dataset = open_web_dataset([tmp_path / name], CLASSES)
            assert [(int(sample.image.max()), sample.filename) for sample in dataset] == [(3, "3.png"), (17, "17.png")]


def test_a_damaged_member_is_an_error_of_its_sample(tmp_path: Path, bucket: Bucket) -> None:
    content = bytearray(tar_bytes(members(rows(0, 3))))
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    dataset = open_web_dataset([path], CLASSES)
    picture_at, annotation_at = content.find(b"\x89PNG", 2000), content.find(b'{"image_id": "image-2"')
    content[picture_at : picture_at + 60] = bytes(60)
    content[annotation_at] = 0
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match=r"a\.tar: sample 1: not an image of a known format"):
            dataset[1]
        with pytest.raises(DataError, match=r"a\.tar: sample 2: a/2\.json: not JSON"):
            dataset[2]
        assert (dataset[0].image == 0).all()


def test_a_damaged_header_is_an_error_when_the_archive_is_opened(tmp_path: Path, bucket: Bucket) -> None:
    content = bytearray(tar_bytes(members(rows(0, 3))))
    whole = bytes(content)
    path = tmp_path / "a.tar"
    header = whole.find(b"a/1.json")
    # The length of an entry of an extended header, beyond what a machine's numbers hold.
    endless = tar_bytes([("a", b"")], pax_headers={"x": "1" * 30})
    endless = endless.replace(b"36 x=" + b"1" * 30, b"9" * 20 + b" x=" + b"1" * 12)
    for damaged, problem in (
        (whole[:header] + b"X" + whole[header + 1 :], rf"a\.tar: the archive is damaged: no header at byte {header}"),
        (whole[:header], rf"a\.tar: the archive is cut off: its end is missing at byte {header}"),
        (whole[: header + 520], "not a tar archive, or damaged: unexpected end of data"),
        (b"no archive" * 100, "not a tar archive, or damaged"),
        (endless, "not a tar archive, or damaged: Python int too large"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=problem):
            open_web_dataset([path], CLASSES)


def test_an_archive_that_changes_in_use_is_noticed(tmp_path: Path, bucket: Bucket) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes(members(rows(0, 3))))
    dataset = open_web_dataset([path], CLASSES)
    path.write_bytes(tar_bytes([("x.txt", b"." * 1000), *members(rows(5, 3))]))
    with pytest.raises(DataError, match="the archive has changed, or is damaged"):
        dataset[1]


def test_missing_annotations(tmp_path: Path, bucket: Bucket) -> None:
    files = [member for member in members(rows(0, 3)) if member[0] != "a/1.json"]
    (tmp_path / "a.tar").write_bytes(tar_bytes(files))
    dataset = open_web_dataset([tmp_path / "a.tar"], CLASSES)
    assert len(dataset) == 3
    with pytest.raises(DataError, match=r"sample 1: a/1\.png has no annotation: no 1\.json beside it"):
        dataset[1]
    some = rows(0, 2)
    some[1]["objects"] = None
    write_parquet(tmp_path / "a.parquet", some, 2)
    with pytest.raises(DataError, match="row 1: objects: expected an object with lists, found None"):
        open_parquet_rows([tmp_path / "a.parquet"], None)[1]


def test_what_is_no_shard(tmp_path: Path, bucket: Bucket) -> None:
    (tmp_path / "empty.tar").write_bytes(b"")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + bytes(100))
    table = pq.read_table(write_parquet(tmp_path / "a.parquet", rows(0, 1), 1))
    pq.write_table(table.drop(["objects"]), tmp_path / "no-objects.parquet")
    (tmp_path / "twice.tar").write_bytes(tar_bytes([("1.png", b"a"), ("1.png", b"b")]))
    for open_rows, name, problem in (
        (open_web_dataset, "empty.tar", "no pictures"),
        (open_web_dataset, "twice.tar", "/1: a second picture of the same name"),
        (open_web_dataset, "none.tar", "no file matches"),
        (open_parquet_rows, "bad.parquet", "bad.parquet"),
        (open_parquet_rows, "no-objects.parquet", "no column objects; found image, image_id"),
    ):
        with pytest.raises(DataError, match=problem):
            open_rows([tmp_path / name], CLASSES)
