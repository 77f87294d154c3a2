"""Shards of pictures, recognized: folders and lists of them, at an address, and what only looks like them."""

from __future__ import annotations

import gzip
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import boxwright as bw
from boxwright.api.train import is_data
from boxwright.base.errors import DataError
from boxwright.data.open_dataset import open_dataset, open_recognized
from boxwright.data.recognize import recognize
from boxwright.data.shapes import ShapesDataset
from boxwright.data.write_rows import write_parquet, write_web_dataset
from boxwright.training.autoconfig.choices import InitSettings
from boxwright.training.autoconfig.start import init_config
from tests.data.shards import members, rows, tar_bytes
from tests.data.shards import write_parquet as write_parquet_of_others
from tests.remote_files import Bucket, open_bucket
from tests.training.autoconfig.datasets import coco

KINDS = {"tar": "WebDataset", "parquet": "Parquet"}


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with open_bucket(tmp_path / "cache") as bucket:
        yield bucket


def write(ending: str, target: str | Path, count: int, num_shards: int = 2) -> None:
    writer = write_web_dataset if ending == "tar" else write_parquet
    writer(ShapesDataset(count, seed=count, size=(64, 80)), f"{target}.{ending}", num_shards=num_shards)


@pytest.mark.parametrize("place", ["folder", "folders", "address", "folders at an address", "odd [1] folder"])
@pytest.mark.parametrize("ending", KINDS)
def test_lists_are_found_by_their_names(ending: str, place: str, tmp_path: Path, bucket: Bucket) -> None:
    where: str | Path = "s3://b/data" if "address" in place else tmp_path / place
    names = ("train/a", "val/a") if "folders" in place else ("train", "val")
    for name, count in zip(names, (9, 4), strict=True):
        write(ending, f"{where}/{name}", count)
    recognized = recognize(where)
    assert recognized.kind == KINDS[ending]
    train, held_out = open_recognized(recognized)
    assert held_out is not None
    assert (len(train), len(held_out)) == (9, 4)
    assert train.categories == held_out.categories == ShapesDataset(1).categories
    if place in ("folder", "address"):
        assert len(open_dataset(where, image_set="val")) == 4
        assert len(open_dataset(f"{where}/val-*.{ending}")) == 4
        assert len(open_dataset(f"{where}/val-00001-of-00002.{ending}")) == 4, "one of a set stands for all of it"


SETS = (("shard_000", "shard_001"), ("a", "b"), ("pictures",))


@pytest.mark.parametrize(
    ("names", "place"),
    [*((names, "here") for names in SETS), *((names, "address") for names in (*SETS, ("1/a", "2/b")))],
)
def test_archives_of_any_names_are_one_set(names: tuple[str, ...], place: str, tmp_path: Path, bucket: Bucket) -> None:
    folder = tmp_path / "data"
    for number, name in enumerate(names):
        content = tar_bytes(members(rows(3 * number, 3)))
        path = folder / f"{name}.tar"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        bucket.put(f"s3://b/data/{name}.tar", content)
    dataset = open_dataset(folder if place == "here" else "s3://b/data")
    assert [dataset[index].id for index in range(len(dataset))] == [f"image-{n}" for n in range(3 * len(names))]
    assert [item.name for item in dataset.categories] == ["cat", "dog"]


def test_archives_of_which_some_are_compressed_are_not_passed_over(tmp_path: Path, bucket: Bucket) -> None:
    content = tar_bytes(members(rows(0, 3)))
    for name, packed in (("a.tar", content), ("b.tar.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(packed)
        bucket.put(f"s3://b/data/{name}", packed)
    for where in (tmp_path, "s3://b/data"):
        with pytest.raises(DataError, match=r"which of a\.tar, b\.tar\.gz is for training\?"):
            recognize(where)


def test_a_set_with_a_gap(tmp_path: Path) -> None:
    write("tar", tmp_path / "a", 9, 3)
    (tmp_path / "a-00001-of-00003.tar").unlink()
    with pytest.raises(DataError, match=r"1 of 3 shards are missing: a-00001-of-00003\.tar"):
        open_dataset(tmp_path)


def test_mixed_and_empty_folders(tmp_path: Path, bucket: Bucket) -> None:
    for folder in (str(tmp_path / "mixed"), "s3://b/mixed"):
        for ending in KINDS:
            write(ending, f"{folder}/{ending}", 2)
        with pytest.raises(DataError, match="2 files of WebDataset and 2 files of Parquet; move each to a folder"):
            recognize(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no known format \(an empty folder\); expected .*shards of WebDataset"):
        recognize(tmp_path / "empty")
    with pytest.raises(
        DataError, match="^s3://b/none: data at an address are shards, .tar .* or .parquet; found nothing$"
    ):
        recognize("s3://b/none")
    bucket.put("s3://b/voc/a.xml", b"<annotation/>")
    with pytest.raises(DataError, match=r"found a\.xml$"):
        recognize("s3://b/voc")
    with pytest.raises(DataError, match=r"^s3://b/none\.tar: no such file$"):
        recognize("s3://b/none.tar")


def test_archives_and_parquet_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive of a folder is unpacked, and Hugging Face's Parquet is looked at for what its boxes are."""
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    folder = coco(tmp_path / "coco")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(folder, "coco")
    assert recognize(tmp_path / "a.tar").kind == "COCO"
    write_parquet_of_others(tmp_path / "a.parquet", rows(0, 12), 4)
    assert recognize(tmp_path / "a.parquet").train.format == "coco"
    (tmp_path / "b.tar").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"b\.tar"):
        recognize(tmp_path / "b.tar")


@pytest.mark.slow
@pytest.mark.parametrize("ending", KINDS)
def test_a_configuration_reads_shards_where_they_are(ending: str, tmp_path: Path, bucket: Bucket) -> None:
    where = str(tmp_path / "data")
    write(ending, f"{where}/train", 12)
    init_config(where, tmp_path / "pipeline.config", InitSettings(batch="2", model="ssd_mobilenet_v2_320"))
    config = bw.load_config(tmp_path / "pipeline.config")
    assert config.train_input_reader is not None
    reader = config.train_input_reader.web_dataset_input_reader or config.train_input_reader.parquet_input_reader
    assert reader is not None
    assert reader.input_path == [f"{where}/train-?????-of-00002.{ending}"]


def test_what_python_takes_for_data(tmp_path: Path) -> None:
    assert all(is_data(source) for source in ("s3://b/data", "a.tar", "train-*.parquet", tmp_path))
    with pytest.raises(bw.ConfigError, match="neither annotated pictures"):
        is_data("a.onnx")


def test_shards_are_split_and_their_boxes_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    write("tar", tmp_path / "data" / "all", 9)
    shutil.copytree(tmp_path / "data", tmp_path / "outer" / "data")
    recognized = recognize(tmp_path / "outer")
    assert (recognized.folder, recognized.held_out) == ("data", None)
