"""The account of what data are used: files, samples, samples without objects, boxes used and dropped; it adds up."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxwright.data.account import take_account
from boxwright.data.open_dataset import open_recognized
from boxwright.data.recognize import recognize
from tests.brought.layouts import coco, kitti, raccoon, voc, write, yolo, yolo_with_classes
from tests.brought.orientation_variants import FORMATS
from tests.brought.pictures import pictures
from tests.brought.tool_layouts import labelme


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_nothing_is_left_out_of_what_is_good(name: str, tmp_path: Path) -> None:
    training, _ = open_recognized(recognize(FORMATS[name](pictures(), tmp_path / "brought")))
    account = take_account(training)
    assert (account.files, account.samples, account.empty, account.boxes) == (5, 5, 0, 10)
    assert not account.left_out.total()
    # Regions to ignore are neither used nor lost.
    assert account.dropped.total() == 0


@pytest.mark.parametrize("name", ["COCO", "VOC", "YOLO", "YOLO with classes.txt", "raccoon CSV", "LabelMe"])
def test_a_picture_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    path = FORMATS[name](pictures(), tmp_path / "brought")
    next(path.rglob("p4.png")).write_bytes(b"<html>not found</html>")
    account = take_account(open_recognized(recognize(path))[0])
    assert (account.files, account.samples, account.boxes) == (5, 4, 8)
    assert account.left_out.total() == 1
    assert account.files == account.samples + account.left_out.total()


def test_samples_without_objects_are_counted_apart(tmp_path: Path) -> None:
    path = yolo({"train": pictures()}, tmp_path / "brought")
    write(path / "train" / "labels" / "p4.txt", "")
    account = take_account(open_recognized(recognize(path))[0])
    assert (account.files, account.samples, account.empty, account.boxes) == (5, 5, 1, 8)


def test_dropped_boxes_are_counted_by_reason(tmp_path: Path) -> None:
    def spoil(content: dict[str, list[dict[str, object]]]) -> None:
        content["annotations"][0]["bbox"] = [10, 10, 0, 5]
        content["annotations"][1]["bbox"] = []
        content["annotations"].append({"id": 99, "image_id": 99, "category_id": 1, "bbox": [1, 1, 5, 5]})

    path = coco(pictures(), tmp_path / "brought", change=spoil)
    account = take_account(open_recognized(recognize(path))[0])
    assert account.boxes == 8
    assert account.dropped.total() == 3
    assert len(account.dropped.counts) >= 2, "an absent image and a box without area are different reasons"


def test_regions_to_ignore_are_no_boxes(tmp_path: Path) -> None:
    account = take_account(open_recognized(recognize(kitti(pictures(), tmp_path / "brought")))[0])
    assert account.boxes == 10


@pytest.mark.parametrize("write_one", [voc, coco, raccoon, labelme, yolo_with_classes])
def test_a_picture_without_labels_is_a_file(write_one: object, tmp_path: Path) -> None:
    path = write_one(pictures(), tmp_path / "brought")  # type: ignore[operator]
    beside = next(path.rglob("p0.png"))
    beside.with_name("lonely.png").write_bytes(beside.read_bytes())
    account = take_account(open_recognized(recognize(path))[0])
    assert account.files == 6
    assert account.boxes == 10
    assert account.empty + account.left_out.total() == 1
    assert account.empty == 1 or "lonely.png" in account.left_out.examples.values()
