"""Formats and lists, recognized."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import boxwright as bw
from boxwright.data.open_dataset import open_recognized
from boxwright.data.recognize import recognize
from boxwright.data.sources import open_source
from tests.training.autoconfig.datasets import coco, roboflow_coco, roboflow_yolo, shapes, tfrecords, voc, yolo

CLASSES = [item.name for item in shapes(1, 1).categories]
MADE: dict[str, Callable[[Path], Path]] = {
    "YOLO": yolo,
    "Roboflow's YOLO": roboflow_yolo,
    "Roboflow's COCO": roboflow_coco,
    "COCO": coco,
    "TFRecords": tfrecords,
}


@pytest.mark.slow_cases("YOLO", "Roboflow's YOLO", "TFRecords")
@pytest.mark.parametrize("name", MADE)
def test_formats_with_lists(name: str, tmp_path: Path) -> None:
    found = recognize(MADE[name](tmp_path / "data"))
    assert found.kind == name.replace("Roboflow's YOLO", "YOLO")
    assert found.held_out is not None
    train, held_out = open_recognized(found)
    assert held_out is not None
    assert (len(train), len(held_out)) == (20, 6)
    assert sorted(item.name for item in train.categories) == sorted(CLASSES)
    if name == "Roboflow's YOLO":
        assert found.notes == ("the list test is kept for a final evaluation",)
    for dataset in (train, held_out):
        for number in range(len(dataset)):
            sample = dataset[number]
            assert sample.image.shape == (64, 80, 3)


def test_voc_without_and_with_lists(tmp_path: Path) -> None:
    folder = voc(tmp_path / "voc")
    found = recognize(folder)
    assert (found.kind, found.held_out) == ("Pascal VOC", None)
    lists = folder / "ImageSets" / "Main"
    stems = (lists / "all.txt").read_text().split()
    for names, train, held_out in (
        (("train", "val"), "train", "val"),
        (("train", "val", "test"), "train", "val"),
        (("train", "val", "trainval"), "train", "val"),
        (("trainval", "test"), "trainval", "test"),
        (("train", "val", "trainval", "test", "circle_train"), "trainval", "test"),
        (("trainval",), "trainval", None),
    ):
        shutil.rmtree(lists)
        lists.mkdir()
        for name in names:
            (lists / f"{name}.txt").write_text("\n".join(stems[:5]))
        found = recognize(folder)
        assert found.train.part == train, names
        own = found.held_out.part if found.held_out else None
        assert own == held_out, names


def test_a_folder_of_pictures_with_one_json(tmp_path: Path) -> None:
    from boxwright.data.convert import write_coco

    write_coco(shapes(8, 1), tmp_path / "data" / "labels.json")
    found = recognize(tmp_path / "data")
    assert (found.kind, found.held_out) == ("COCO", None)
    assert len(open_source(found.train)) == 8
    assert recognize(tmp_path / "data" / "labels.json").train == found.train


def test_files_are_named_as_well_as_folders(tmp_path: Path) -> None:
    folder = yolo(tmp_path / "yolo")
    assert recognize(folder / "data.yaml").train == recognize(folder).train
    records = tfrecords(tmp_path / "records")
    one = recognize(records / "val.record")
    assert one.held_out is None
    assert one.train.path == str(records / "val.record")


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    voc(tmp_path / "voc")
    monkeypatch.chdir(tmp_path)
    found = recognize("voc")
    assert found.train.path == str(tmp_path / "voc")


def test_what_is_not_recognized_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(bw.DataError, match="no such file or folder"):
        recognize(tmp_path / "nowhere")
    with pytest.raises(bw.DataError, match=r"no known format \(an empty folder\); expected YOLO"):
        recognize(tmp_path)
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    with pytest.raises(bw.DataError, match=r"1 image and no annotations \(a\.png\); expected YOLO"):
        recognize(tmp_path)
    (tmp_path / "data.yaml").write_text("names: [a]\nval: images\n")
    (tmp_path / "images").mkdir()
    with pytest.raises(bw.DataError, match="no list 'train'; there are: val"):
        recognize(tmp_path)
    for name in ("one", "two"):
        (tmp_path / "both" / name).mkdir(parents=True)
        (tmp_path / "both" / name / "_annotations.coco.json").write_text("{}")
    with pytest.raises(bw.DataError, match=r"several data sets: one \(Roboflow's COCO\), two"):
        recognize(tmp_path / "both")


def test_lists_that_hold_each_other_are_no_pair(tmp_path: Path) -> None:
    """`trainval` has val in it: it goes with test, and without one the parts are taken."""
    from boxwright.data.convert import write_tfrecords

    for name, seed in (("trainval", 1), ("val", 2)):
        write_tfrecords(shapes(4, seed), tmp_path / f"{name}.record")
    found = recognize(tmp_path)
    assert found.train.path == str(tmp_path / "trainval.record")
    assert found.held_out is None
    assert found.notes == ("not used: val.record",)
    write_tfrecords(shapes(4, 3), tmp_path / "train.record")
    found = recognize(tmp_path)
    assert found.held_out is not None
    assert found.train.path == str(tmp_path / "train.record")
    assert found.notes == ("not used: trainval.record",)


def test_other_lists_are_named(tmp_path: Path) -> None:
    folder = voc(tmp_path / "voc")
    lists = folder / "ImageSets" / "Main"
    stems = (lists / "all.txt").read_text().split()
    (lists / "all.txt").unlink()
    for name in ("fold1_train", "fold1_val", "fold2_train"):
        (lists / f"{name}.txt").write_text("\n".join(stems[:5]))
    (lists / "circle_train.txt").write_text("\n".join(f"{stem}  1" for stem in stems))
    found = recognize(folder)
    assert found.train.part == "fold1_train"
    assert found.notes == ("not used: fold2_train",)


def test_a_class_that_only_one_side_has(tmp_path: Path) -> None:
    folder = voc(tmp_path / "voc")
    lists = folder / "ImageSets" / "Main"
    stems = (lists / "all.txt").read_text().split()
    (lists / "all.txt").unlink()
    (lists / "train.txt").write_text("\n".join(stems[1:]))
    (lists / "val.txt").write_text(stems[0])
    annotation = folder / "Annotations" / f"{stems[0]}.xml"
    text = annotation.read_text()
    annotation.write_text(text.replace("<name>", "<name>rare-", 1))
    train, held_out = open_recognized(recognize(folder))
    assert held_out is not None
    assert train.categories == held_out.categories
    assert len(held_out[0].boxes) > 0


def test_yolo_lists_that_are_not_there_or_the_same(tmp_path: Path) -> None:
    folder = yolo(tmp_path / "yolo")
    path = folder / "data.yaml"
    text = path.read_text()
    path.write_text(text.replace("images/val", "images/gone"))
    assert recognize(folder).held_out is None
    path.write_text(text.replace("images/val", "images/train"))
    found = recognize(folder)
    assert found.held_out is None
    assert found.notes == ("val names the same images as train, and is not used",)


def test_paths_outside_are_meant_where_that_is_said(tmp_path: Path) -> None:
    folder = yolo(tmp_path / "data" / "yolo")
    (tmp_path / "yaml").mkdir()
    text = (folder / "data.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("path")]
    (tmp_path / "yaml" / "data.yaml").write_text("\n".join(["path: ../data/yolo", *lines]))
    with pytest.raises(bw.DataError, match="lies outside"):
        open_recognized(recognize(tmp_path / "yaml"))
    train, held_out = open_recognized(recognize(tmp_path / "yaml", allow_paths_outside=True))
    assert held_out is not None
    assert (len(train), len(held_out)) == (20, 6)


def test_other_json_beside_the_data(tmp_path: Path) -> None:
    folder = voc(tmp_path / "voc")
    (folder / "classes.json").write_text('["a"]')
    assert recognize(folder).kind == "Pascal VOC"
    there = coco(tmp_path / "coco")
    (there / "annotations" / "notes.json").write_text('{"notes": []}')
    assert recognize(there).held_out is not None
    one = recognize(there / "annotations" / "instances_val2017.json")
    assert len(open_source(one.train)) == 6
    assert open_source(one.train)[0].image.shape == (64, 80, 3)
    (tmp_path / "link.json").symlink_to(there / "annotations" / "instances_val2017.json")
    assert recognize(tmp_path / "link.json").kind == "COCO"


def test_what_is_not_finished_or_no_data(tmp_path: Path) -> None:
    folder = roboflow_coco(tmp_path / "data")
    (folder / "UNFINISHED").write_text("by somebody")
    with pytest.raises(bw.DataError, match="incomplete"):
        recognize(folder)
    (tmp_path / "a.config").write_text("model { }")
    with pytest.raises(bw.DataError, match="is a configuration; pass it as --config"):
        recognize(tmp_path / "a.config")
