"""The table of a COCO file: the same content, kept beside the file until that changes, and never believed blindly."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boxwright.base.files import lock
from boxwright.data import coco, coco_table
from boxwright.data.coco import CocoDataset
from boxwright.data.coco_table import PackedJson
from boxwright.types import Categories, Category

VALUES = [
    {"id": 2**60, "bbox": [0.1, 1e-300, -0.0, 12345678.25]},
    [],
    "\ud800 \u2028 é",
    None,
    [{"a": {"b": [True, False]}}, float("inf")],
]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of two images, one annotation of an image that is not there and one without a box."""
    monkeypatch.setattr(coco_table, "KEPT_BYTES", 0)
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    return write(folder / "a.json")


def write(path: Path, box: float = 3.25) -> Path:
    rows = [
        {"id": 1, "image_id": "7", "category_id": 3, "bbox": [1, 2, box, 4], "dp_I": [1]},
        {"id": 2, "image_id": 9, "category_id": 5, "bbox": [1, 2, 3, 4], "segmentation": [[1, 1, 2, 1, 2, 2]]},
        {"id": 3, "image_id": 7, "category_id": 5, "bbox": []},
        {"id": 4, "image_id": 8, "category_id": 5, "bbox": [0, 0, 1, 1]},
    ]
    images = [{"id": number, "file_name": f"{number}.png", "height": 20, "width": 30} for number in (9, 7)]
    classes = [{"id": 3, "name": "cat"}, {"id": 5, "name": "dog"}]
    path.write_text(json.dumps({"images": images, "annotations": rows, "categories": classes}))
    return path


def tables(path: Path) -> list[Path]:
    return sorted(path.parent.glob(".*.table"))


def content(dataset: CocoDataset) -> Any:
    samples = [dataset.truth(index) for index in range(len(dataset))]
    boxes = [(sample.id, sample.boxes.tolist(), sample.labels.tolist(), sample.left_out) for sample in samples]
    notices = [[*counts.lines()] for counts in (dataset.notices.assumed, dataset.notices.boxes, dataset.notices.files)]
    return boxes, notices, [dataset.rows(index) for index in range(len(dataset))], list(dataset.categories)


def refuse(*_: object) -> Any:
    raise AssertionError("the file was read again")


def test_any_json_is_kept() -> None:
    packed = PackedJson.of(VALUES)
    assert list(packed) == VALUES
    assert (len(packed), packed[-1]) == (5, VALUES[-1])
    with pytest.raises(IndexError):
        packed[5]


def test_the_table_has_what_the_file_has(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: an id in another spelling, an annotation without a box, one of no image."""
    first = content(CocoDataset(path))
    assert first[0] == [
        ("9", [[1.0, 2.0, 4.0, 6.0]], [1], 0),
        ("7", [[1.0, 2.0, 4.25, 6.0]], [0], 0),
    ]
    assert [len(lines) for lines in first[1]] == [1, 2, 0]
    assert first[2][1][1] == [{"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 2, 3.25, 4], "dp_I": [1]}]
    monkeypatch.setattr(coco, "read_json", refuse)
    assert content(CocoDataset(path)) == first
    assert CocoDataset(path, dense_pose=None)._dense_pose
    assert not CocoDataset(path, track_ids=None)._track_ids


def test_each_label_map_has_its_table(path: Path) -> None:
    dogs = Categories((Category(0, 1, "dog"),))
    for _ in range(2):
        assert content(CocoDataset(path))[0][1][2:] == ([0], 0)
        assert content(CocoDataset(path, None, dogs))[0][1][2:] == ([], 1)
    assert len(tables(path)) == 2


def test_a_file_that_changed_is_read_anew(path: Path) -> None:
    """By its content: time and size are those of before."""
    CocoDataset(path)
    state = path.stat()
    write(path, box=5.25)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_size == state.st_size
    assert CocoDataset(path).truth(1).boxes.tolist() == [[1, 2, 6.25, 6]]
    assert len(tables(path)) == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "another"])
def test_a_damaged_table_is_made_anew(damage: str, path: Path) -> None:
    first = content(CocoDataset(path))
    (table,) = tables(path)
    whole = table.read_bytes()
    flipped = bytes([*whole[:-20], whole[-20] ^ 1, *whole[-19:]])
    table.write_bytes({"cut": whole[:-8], "flipped": flipped, "emptied": b"", "another": pickle.dumps([1])}[damage])
    assert content(CocoDataset(path)) == first
    assert table.read_bytes() == whole


def test_a_folder_that_cannot_be_written_has_its_table_in_the_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = coco_table._store

    def refused(place: Path, *rest: Any) -> None:
        if place.parent == path.parent:
            raise PermissionError(place)
        store(place, *rest)

    monkeypatch.setattr(coco_table, "_store", refused)
    first = content(CocoDataset(path))
    assert not tables(path)
    assert len(list((tmp_path / "cache").glob("*.table"))) == 1
    monkeypatch.setattr(coco, "read_json", refuse)
    assert content(CocoDataset(path)) == first


def test_of_processes_that_open_a_file_at_once_one_reads_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one reads, the others cannot take the lock; the one that gets it next finds the table."""
    read, others = coco.read_json, []

    def read_under_lock(place: Path) -> Any:
        (held,) = (path.parents[1] / "cache").glob(".*.lock")
        with held.open() as opened, pytest.raises(BlockingIOError):
            lock(opened.fileno())
        others.append(held)
        return read(place)

    monkeypatch.setattr(coco, "read_json", read_under_lock)
    first = content(CocoDataset(path))
    find = coco_table._find
    # As if it had looked for the table before the first one had written it.
    answers = iter([None])
    monkeypatch.setattr(coco_table, "_find", lambda *given: next(answers, None) or find(*given))
    assert content(CocoDataset(path)) == first
    assert len(others) == 1


def test_without_a_folder_to_write_to_the_file_is_read_each_time(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("no folder")
    monkeypatch.setattr(coco_table, "_store", lambda place, *_: (_ for _ in ()).throw(PermissionError(place)))
    assert content(CocoDataset(path)) == content(CocoDataset(path))


def test_small_files_get_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coco_table, "KEPT_BYTES", 1 << 24)
    CocoDataset(path)
    assert not tables(path)


def test_other_processes_map_the_file(path: Path) -> None:
    """What is handed to a process that is not forked does not grow with the data."""
    dataset = CocoDataset(path)
    assert isinstance(dataset._objects.texts.text, np.memmap)
    assert b"bbox" not in pickle.dumps(dataset._objects)
    assert list(pickle.loads(pickle.dumps(dataset._objects))) == list(dataset._objects)


@pytest.mark.slow
def test_a_spawned_process_reads_the_same(path: Path) -> None:
    dataset = CocoDataset(path)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(dataset.rows, range(2)) == [dataset.rows(index) for index in range(2)]
