"""Data at addresses: the same samples as from the disk, in an order that reads files in sequence."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from boxwright.base import remote
from boxwright.base.errors import DataError
from boxwright.data import shard_files, tfrecord
from boxwright.data.augmentation.transform import Chain
from boxwright.data.batch import Batch
from boxwright.data.coco import CocoDataset
from boxwright.data.groundtruth import HiddenRegionsDataset
from boxwright.data.image_io import encode_picture
from boxwright.data.label_map import load_label_map
from boxwright.data.listed import ListedDataset
from boxwright.data.loader import TrainingExamples, training_batches
from boxwright.data.order import Interleaving, StreamSettings, sample_keys
from boxwright.data.tfrecord import TFRecordFile
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.nn.preprocessing import FixedShapeResizer
from tests.conftest import GOLDEN
from tests.remote_files import Bucket, open_bucket, open_store

RECORDS = GOLDEN / "records"
CATEGORIES = load_label_map(RECORDS / "label_map.pbtxt")


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with open_bucket(tmp_path / "cache") as bucket:
        for path in RECORDS.glob("shapes*record*"):
            bucket.put(f"s3://b/{path.name}", path.read_bytes())
        yield bucket


def batches(settings: StreamSettings, start: int = 0, count: int = 6) -> list[tuple[tuple[str, ...], bytes]]:
    dataset = TFRecordDataset(["s3://b/shapes.record@2"], CATEGORIES)
    examples = TrainingExamples(dataset, Chain(()), FixedShapeResizer(16, 16), seed=0)
    found = list(islice(training_batches(examples, settings, start), count))
    assert all(isinstance(batch, Batch) for batch in found), found
    return [(batch.ids, batch.images.numpy().tobytes()) for batch in found]


@pytest.mark.parametrize(
    "name", ["shapes.record", "shapes.record-?????-of-?????", "shapes.record@2", "shapes.gz.record"]
)
def test_records_are_those_of_the_disk(name: str, bucket: Bucket) -> None:
    there, here = TFRecordDataset([f"s3://b/{name}"], CATEGORIES), TFRecordDataset([RECORDS / name], CATEGORIES)
    assert len(there) == len(here) == 6
    for index in range(6):
        assert np.array_equal(there[index].image, here[index].image)
        assert np.array_equal(there[index].boxes, here[index].boxes)
        assert there[index].id == here[index].id


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_are_the_same_for_any_number_of_workers_and_where_a_run_resumes(workers: int, bucket: Bucket) -> None:
    alone = batches(StreamSettings(2))
    assert len(set(alone)) > 3
    assert batches(StreamSettings(2, workers=workers)) == alone
    assert batches(StreamSettings(2, workers=workers), start=6, count=3) == alone[3:]


def test_each_block_comes_once_an_epoch_though_the_cache_holds_a_few(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two shards of 5.5 and 7.8 KB in blocks of 1 KB, one shard and two records at a time."""
    dataset = TFRecordDataset(["s3://b/shapes.record@2"], CATEGORIES)
    monkeypatch.setenv("BOXWRIGHT_MAX_REMOTE_CACHE_BYTES", "5000")
    keys = sample_keys((6,), StreamSettings(1, interleaving=Interleaving(1, 1)), 0, None, dataset.shard_sizes)
    order = [index for _, index in islice(keys, 6)]
    bucket.reads.clear()
    for index in order:
        dataset[index]
    # Blocks that two records share may have been in the cache before.
    assert len(bucket.reads) == len(set(bucket.reads)) <= 14
    assert order in ([0, 1, 2, 3, 4, 5], [3, 4, 5, 0, 1, 2])


def test_a_connection_that_is_cut_changes_nothing(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = batches(StreamSettings(2))
    with open_bucket(tmp_path / "other") as other:
        for path in RECORDS.glob("shapes.record-*"):
            other.put(f"s3://b/{path.name}", path.read_bytes())
        monkeypatch.setattr(remote, "DELAYS", (0.0,) * 12)
        other.cuts = [ConnectionResetError("reset"), 17, EOFError("end"), 3] * 3
        assert batches(StreamSettings(2)) == whole
        assert not other.cuts


def test_an_index_beside_the_file_saves_reading_it(bucket: Bucket, tmp_path: Path) -> None:
    local = tmp_path / "shapes.record"
    local.write_bytes((RECORDS / "shapes.record").read_bytes())
    TFRecordFile(local)
    bucket.put("s3://b/.shapes.record.index", (tmp_path / ".shapes.record.index").read_bytes())
    assert len(TFRecordFile("s3://b/shapes.record")) == 6
    assert [(name, start) for name, start in bucket.reads if name == "shapes.record"] == [("shapes.record", 0)]
    bucket.reads.clear()
    assert len(TFRecordFile("s3://b/shapes.record")) == 6
    assert not bucket.reads


def test_an_index_of_another_file_is_noticed_where_a_record_is_read(bucket: Bucket, tmp_path: Path) -> None:
    local = tmp_path / "a.record"
    tfrecord.write_records(local, [b"1", b"22", b"333"])
    TFRecordFile(local)
    bucket.put("s3://b/.a.record.index", (tmp_path / ".a.record.index").read_bytes())
    tfrecord.write_records(local, [b"333", b"22", b"1"])
    bucket.put("s3://b/a.record", local.read_bytes())
    file = TFRecordFile("s3://b/a.record")
    with pytest.raises(DataError, match=r"s3://b/a\.record: record 1 at byte 17: no record begins here"):
        file[1]


def test_missing_shards_and_files(bucket: Bucket) -> None:
    bucket.put("s3://b/t-00000-of-00002", b"")
    for name, problem in (("t@2", "1 of 2 shards are missing"), ("none", "no such file"), ("none*", "no file matches")):
        with pytest.raises(DataError, match=problem):
            TFRecordDataset([f"s3://b/{name}"], CATEGORIES)


def test_what_hides_regions_is_read_in_sequence_too(bucket: Bucket) -> None:
    dataset = TFRecordDataset(["s3://b/shapes.record@2", "s3://b/shapes.record"], CATEGORIES)
    assert HiddenRegionsDataset(dataset).shard_sizes == ((3, 3), (6,))
    assert HiddenRegionsDataset(dataset).source_sizes == (6, 6)
    assert TFRecordDataset([RECORDS / "shapes.record"], CATEGORIES).shard_sizes == ()


def test_a_list_of_samples_is_read_in_sequence_if_it_is_in_order(bucket: Bucket) -> None:
    dataset = TFRecordDataset(["s3://b/shapes.record@2", "s3://b/shapes.record"], CATEGORIES)
    assert ListedDataset(dataset, [(0, ""), (2, ""), (7, ""), (8, "")], "list").shard_sizes == ((2, 0, 2),)
    assert ListedDataset(dataset, [(2, ""), (0, "")], "list").shard_sizes == ()
    assert ListedDataset(TFRecordDataset([RECORDS / "shapes.record"], CATEGORIES), [(0, "")], "list").shard_sizes == ()


def indices(count: int, settings: StreamSettings, shards: tuple[tuple[int, ...], ...]) -> list[int]:
    sizes = tuple(map(sum, shards))
    return [index for _, index in islice(sample_keys(sizes, settings, 0, None, shards), count)]


def test_files_are_read_in_turn_by_blocks() -> None:
    """Files of 5, 3 and 4 records, two at a time, two records of each in turn."""
    order = indices(12, StreamSettings(1, interleaving=Interleaving(1, 2, 2)), ((5, 3, 4),))
    of_file = {number: file for file, part in enumerate((range(5), range(5, 8), range(8, 12))) for number in part}
    files = [of_file[number] for number in order]
    first, second = files[0], files[2]
    third = ({0, 1, 2} - {first, second}).pop()
    size = {0: 5, 1: 3, 2: 4}
    turns = {file: [min(2, size[file] - at) for at in range(0, size[file], 2)] for file in size}
    expected = []
    for turn in range(3):
        for file in (first, second):
            expected += [file] * (turns[file][turn] if turn < len(turns[file]) else 0)
    assert files == expected + [third] * size[third]
    for file in size:
        mine = [number for number in order if of_file[number] == file]
        assert mine == sorted(mine)


def test_a_buffer_shuffles_its_records_alone() -> None:
    shards = ((40,),)
    order = indices(40, StreamSettings(1, interleaving=Interleaving(8, 1, 4)), shards)
    assert order != list(range(40))
    assert [sorted(order[start : start + 8]) for start in range(0, 40, 8)] == np.arange(40).reshape(5, 8).tolist()


@pytest.mark.parametrize("weights", [(), (0.3, 0.7)])
@pytest.mark.parametrize("every_nth", [1, 3])
def test_an_epoch_has_each_sample_once_and_resumes_anywhere(weights: tuple[float, ...], every_nth: int) -> None:
    settings = StreamSettings(
        1, every_nth=every_nth, num_epochs=2, source_weights=weights, interleaving=Interleaving(5, 2, 3)
    )
    shards = ((7, 1, 12), (9, 9))
    keys = list(sample_keys((20, 18), settings, 0, None, shards))
    used = sorted({index for _, index in keys})
    assert used == (
        sorted([*range(0, 20, every_nth), *range(20, 38, every_nth)]) if weights else [*range(0, 38, every_nth)]
    )
    assert len(set(keys)) == len(keys) == 2 * len(used)
    for start in (1, 17, len(used), len(keys) - 1):
        assert list(sample_keys((20, 18), settings, start, None, shards)) == keys[start:]


def test_pictures_of_coco_are_fetched_as_they_are_read(bucket: Bucket, tmp_path: Path) -> None:
    picture = encode_picture(np.full((20, 30, 3), 77, np.uint8), ".png")
    content = {
        "images": [{"id": number, "file_name": f"{number}.png", "height": 20, "width": 30} for number in (1, 2)],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}],
        "categories": [{"id": 1, "name": "cell"}],
    }
    bucket.put("s3://b/coco/instances.json", json.dumps(content).encode())
    bucket.put("s3://b/coco/images/1.png", picture)
    for folder in (None, "s3://b/coco/images"):
        dataset = CocoDataset("s3://b/coco/instances.json", folder)
        assert len(dataset) == 2
        sample = dataset[0]
        assert (sample.image == 77).all()
        assert sample.boxes.tolist() == [[1, 2, 4, 6]]
        with pytest.raises(DataError, match=r"image 2: file_name: no picture '2\.png' in s3://b/coco"):
            dataset[1]
    assert [name for name, _ in bucket.reads].count("1.png") == 1


def test_a_web_server_is_asked_for_each_picture_once(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its addresses may be signed."""
    content = {
        "images": [{"id": 1, "file_name": "a b.png", "height": 20, "width": 30}],
        "annotations": [],
        "categories": [{"id": 1, "name": "cell"}],
    }
    bucket.put("https://h/coco/instances.json?sig=x/y", json.dumps(content).encode())
    bucket.put("https://h/coco/a%20b.png?sig=x/y", encode_picture(np.full((20, 30, 3), 77, np.uint8), ".png"))
    dataset = CocoDataset("https://h/coco/instances.json?sig=x/y")
    asked: list[str] = []
    info = bucket.info
    monkeypatch.setattr(bucket, "info", lambda address: asked.append(address) or info(address))
    for _ in range(3):
        assert (dataset[0].image == 77).all()
    assert asked == ["https://h/coco/a%20b.png?sig=x/y"]


def test_a_packed_file_is_unpacked_once_by_all_that_open_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    unpacked: list[str] = []
    unpack = shard_files._unpack_into

    def counted(*arguments: object) -> None:
        unpacked.append("")
        unpack(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shard_files, "_unpack_into", counted)
    lengths: list[int] = []
    threads = [
        threading.Thread(target=lambda: lengths.append(len(TFRecordFile(RECORDS / "shapes.gz.record"))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (lengths, len(unpacked)) == ([6] * 8, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the clients and the server
def test_an_object_store_whose_connections_are_cut(tmp_path: Path) -> None:
    with open_store(tmp_path / "cache") as (store, cutting):
        for path in RECORDS.glob("shapes*record*"):
            store.put_file(str(path), f"bucket/{path.name}")
        cutting.answers_to_cut = 3
        for name in ("shapes.record@2", "shapes.gz.record"):
            there, here = (
                TFRecordDataset([f"s3://bucket/{name}"], CATEGORIES),
                TFRecordDataset([RECORDS / name], CATEGORIES),
            )
            for index in range(6):
                assert np.array_equal(there[index].image, here[index].image)
        assert not cutting.answers_to_cut
        with pytest.raises(DataError, match=r"^s3://bucket/none: no such file$"):
            TFRecordDataset(["s3://bucket/none"], CATEGORIES)
