"""The account of what data are used: files, samples, samples without objects, boxes used and dropped; it adds up; and class names that may be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxwright.base.errors import DataError
from boxwright.data.account import DatasetUsage, near_equal_names, take_account
from boxwright.data.open_dataset import open_recognized
from boxwright.data.reading import ReasonCounts
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


def test_the_summary_is_one_line_where_everything_is_used(tmp_path: Path) -> None:
    path = yolo({"train": pictures()}, tmp_path / "brought")
    everything = open_recognized(recognize(path))[0]
    assert take_account(everything).summary() == ["5 images and 10 boxes; all are used"]
    write(path / "train" / "labels" / "p4.txt", "")
    account = take_account(open_recognized(recognize(path))[0])
    assert account.summary() == ["5 images (1 without objects) and 8 boxes; all are used"]
    next(path.rglob("p3.png")).write_bytes(b"<html>not found</html>")
    account = take_account(open_recognized(recognize(path))[0])
    assert account.summary() == account.lines()
    assert account.summary()[0].endswith("1 left out")


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


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        ({"red": 6, "Red": 6, "blue": 3}, [("Red", "red")]),
        ({"traffic light": 9, "traffic_light": 2, "TrafficLight": 1}, 3),
        ({"red ": 1, "red": 6}, [("red ", "red")]),
        # One letter more, less, or another, of names where one is rare: a fifth of the other's objects at most.
        ({"green": 5, "gren": 1}, [("gren", "green")]),
        ({"green": 4, "gren": 1}, []),
        ({"raccoon": 200, "raccon": 1, "racoon": 2}, [("raccon", "raccoon"), ("racoon", "raccoon")]),
        ({"person": 50, "persom": 3}, [("persom", "person")]),
        ({"person": 50, "persons": 3}, [("persons", "person")]),
        ({"person": 50, "eperson": 3}, [("eperson", "person")]),
        ({"person": 50, "presom": 3}, []),
        # Short names, numbers, and names that are equally frequent may all be meant.
        ({"cat": 50, "car": 1}, []),
        ({"cats": 50, "cat": 1}, [("cat", "cats")]),
        ({"type1": 50, "type2": 1}, []),
        ({"type": 50, "type2": 1}, []),
        ({"boat": 30, "goat": 30}, []),
        ({"a": 1}, []),
        ({}, []),
    ],
)
def test_near_equal_names(counts: dict[str, int], wanted: list[tuple[str, str]] | int) -> None:
    pairs = near_equal_names(counts)
    assert (len(pairs) if isinstance(wanted, int) else pairs) == wanted


def test_a_thousand_classes_take_no_time() -> None:
    assert near_equal_names({f"{number:05d} kind of thing": 1 for number in range(20_000)}) == []


def test_a_refusal_is_one_line() -> None:
    """An error about data shows the end of a line as a character of a name."""
    left_out = ReasonCounts()
    left_out.add("pictures without annotations", "a.png", 3)
    usage = DatasetUsage(1, 0, 1, 0, ReasonCounts(), left_out, ReasonCounts())
    with pytest.raises(DataError) as raised:
        usage.refuse_losses(0.05, "data", undecodable=1)
    text = str(raised.value)
    assert "\\u000a" not in text
    assert text.startswith("data: 100% of the boxes or pictures would not be used, more than 5%: ")
    assert "; left out: pictures without annotations: 3 (a.png); left out: 1 picture that cannot be decoded; " in text
