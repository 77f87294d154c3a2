"""Labels in text files: KITTI's, VisDrone's, OIDv4 ToolKit's and CSV tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boxwright.base.errors import DataError
from boxwright.data.coco import CocoDataset
from boxwright.data.layouts.table import find_layout
from boxwright.evaluation.metrics.coco import CocoMetrics
from boxwright.types import Detections
from tests.data.layouts.opened import classes_in, draw, objects_in

KITTI = "{} 0.00 0 -1.57 {} 1.5 1.6 3.6 0.1 1.5 8.4 0.01\n"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def kitti(tmp_path: Path) -> Path:
    draw(tmp_path, "training/image_2/000000.png", "training/image_2/000001.png")
    lines = [("Car", "10 20 40.5 60"), ("DontCare", "50 10 70 30"), ("Van", "1 2 3 4")]
    write(tmp_path / "training/label_2/000000.txt", "".join(KITTI.format(*line) for line in lines))
    write(tmp_path / "training/label_2/000001.txt", "")
    return tmp_path


def test_kitti(kitti: Path) -> None:
    expected = [
        ("Car", [10, 20, 40.5, 60]),
        ("Van", [1, 2, 3, 4]),
        ("ignore Car", [50, 10, 70, 30]),
        ("ignore Van", [50, 10, 70, 30]),
    ]
    assert getattr(find_layout(kitti), "name", None) == "KITTI's labels"
    assert objects_in(kitti) == {"training/image_2/000000.png": expected, "training/image_2/000001.png": []}
    assert objects_in(kitti / "training") == {"image_2/000000.png": expected, "image_2/000001.png": []}
    assert [*objects_in(kitti, kitti / "training" / "image_2")] == ["000000.png", "000001.png"]


def test_detections_in_a_region_to_ignore_are_no_errors(kitti: Path) -> None:
    data = CocoDataset(kitti)
    sample = data[0]
    boxes = np.array([[10, 20, 40.5, 60], [1, 2, 3, 4], [52, 12, 60, 20], [52, 12, 60, 20]], np.float32)
    scores = np.array([0.5, 0.5, 0.9, 0.9], np.float32)
    detections = Detections(boxes, scores, np.array([0, 1, 0, 1]), (80, 100))
    metrics = CocoMetrics(data.categories)
    metrics.add(sample, detections)
    assert metrics.compute().values["DetectionBoxes_Precision/mAP"] == pytest.approx(1)


def test_the_tao_toolkits_folders(tmp_path: Path) -> None:
    draw(tmp_path, "images/a.jpg")
    write(tmp_path / "labels/a.txt", KITTI.format("cat", "1 2 3 4"))
    assert objects_in(tmp_path) == {"images/a.jpg": [("cat", [1, 2, 3, 4])]}
    write(tmp_path / "labels/a.txt", "0 0.5 0.5 0.1 0.1\n")
    assert find_layout(tmp_path) is None, "it is YOLO's"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("Car 0 0 0 1 2 3", r"000000.txt: line 4: expected a class and 14 or 15 numbers, found 6"),
        (KITTI.format("Car", "1 2 3 far"), "line 4: expected a number, found 'far'"),
        (KITTI.format("Car", "1 2 3 nan"), "line 4: expected a finite number"),
    ],
)
def test_what_is_not_kittis(line: str, problem: str, kitti: Path) -> None:
    with (kitti / "training/label_2/000000.txt").open("a") as file:
        file.write(line)
    with pytest.raises(DataError, match=problem):
        objects_in(kitti)


def test_labels_of_two_pictures_or_none(kitti: Path) -> None:
    draw(kitti, "training/image_2/000000.jpg")
    with pytest.raises(DataError, match=r"the picture of '000000' may be 000000.jpg or 000000.png"):
        objects_in(kitti)
    for name in ("000000.jpg", "000000.png"):
        (kitti / "training/image_2" / name).unlink()
    with pytest.raises(DataError, match="000000.png"):
        objects_in(kitti)


def test_visdrone(tmp_path: Path) -> None:
    draw(tmp_path, "images/a.jpg", "images/b.jpg")
    write(
        tmp_path / "annotations/a.txt", "10,20,30,40,1,4,0,0\n1,2,3,4,1,11,0,1,\n50,10,20,20,0,0,0,0\n5,5,5,5,0,4,0,0\n"
    )
    write(tmp_path / "annotations/b.txt", "")
    assert getattr(find_layout(tmp_path), "name", None) == "VisDrone's labels"
    read = objects_in(tmp_path)
    assert read["images/a.jpg"][:2] == [("car", [10, 20, 40, 60]), ("others", [1, 2, 4, 6])]
    ignored = {
        label: [box for other, box in read["images/a.jpg"] if other == label] for label, _ in read["images/a.jpg"][2:]
    }
    assert [*ignored] == [f"ignore {name}" for name in classes_in(tmp_path)]
    assert len(ignored) == 11
    assert ignored["ignore bus"] == [[50, 10, 70, 30], [5, 5, 10, 10]]
    assert read["images/b.jpg"] == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1,2,3", "a.txt: line 2: expected 8 numbers, found '1,2,3'"),
        ("1,2,3,x,1,4,0,0", "line 2: expected a number, found 'x'"),
        ("1,2,3,4,1,12,0,0", "line 2: category: expected 0 to 11, found 12"),
        ("1,2,3,4,1,1.5,0,0", "category: expected a whole number"),
    ],
)
def test_what_is_not_visdrones(line: str, problem: str, tmp_path: Path) -> None:
    draw(tmp_path, "images/a.jpg")
    write(tmp_path / "annotations/a.txt", f"10,20,30,40,1,4,0,0\n{line}\n")
    with pytest.raises(DataError, match=problem):
        objects_in(tmp_path)


def test_oid_toolkit(tmp_path: Path) -> None:
    draw(tmp_path, "Cat/a.jpg", "Cat/b.jpg", "Traffic light/b.jpg")
    write(tmp_path / "Cat/Label/a.txt", "Cat 1.5 2 3 4\n")
    write(tmp_path / "Cat/Label/b.txt", "Cat 10 20 30 40\n")
    write(tmp_path / "Traffic light/Label/b.txt", "Traffic light 5 6 7 8\n")
    assert getattr(find_layout(tmp_path), "name", None) == "OIDv4 ToolKit's labels"
    assert objects_in(tmp_path) == {
        "Cat/a.jpg": [("Cat", [1.5, 2, 3, 4])],
        "Cat/b.jpg": [("Cat", [10, 20, 30, 40]), ("Traffic light", [5, 6, 7, 8])],
    }
    assert [*objects_in(tmp_path / "Traffic light")] == ["b.jpg"]
    write(tmp_path / "Cat/Label/b.txt", "Cat 10 20 30\n")
    with pytest.raises(DataError, match=r"b.txt: line 1: expected a class and four numbers"):
        objects_in(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "filename,width,height,class,xmin,ymin,xmax,ymax\na.png,100,80,cat,10,20,40,60\nb.png,100,80,,,,,\n",
        "class,filename,xmin,xmax,ymin,ymax\ncat,a.png,10,40,20,60\n\n,b.png,,,,\n",
        "\ufefffilename;class;xmin;ymin;xmax;ymax\r\na.png;cat;10;20;40;60\r\nb.png;;;;;\r\n",
        "a.png,10,20,40,60,cat\nb.png,,,,,\n",
        'b.png,,,,,\n"a.png",10,20,40,60,cat\n',
    ],
    ids=["Roboflow", "other order", "spreadsheet", "RetinaNet", "RetinaNet, first empty"],
)
def test_tables(text: str, tmp_path: Path) -> None:
    draw(tmp_path, "images/a.png", "images/b.png")
    write(tmp_path / "_annotations.csv", text)
    assert getattr(find_layout(tmp_path), "name", None) == "a CSV table"
    assert objects_in(tmp_path) == {"a.png": [("cat", [10, 20, 40, 60])], "b.png": []}


def test_classes_beside_a_table(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    write(tmp_path / "annotations.csv", "a.png,10,20,40,60,cat\n")
    write(tmp_path / "classes.csv", "dog,1\ncat,0\n")
    assert classes_in(tmp_path) == ["cat", "dog"]
    write(tmp_path / "classes.csv", "dog,1\n")
    with pytest.raises(DataError, match=r"row 1: class 'cat' is not among the classes \(dog\)"):
        classes_in(tmp_path)


def test_parts_are_asked_for_one_by_one(tmp_path: Path) -> None:
    draw(tmp_path, "images/a.png")
    for name in ("train", "test"):
        write(tmp_path / f"{name}_labels.csv", "filename,class,xmin,ymin,xmax,ymax\na.png,cat,10,20,40,60\n")
    assert find_layout(tmp_path) is None
    assert find_layout(tmp_path / "train_labels.csv") is not None
    with pytest.raises(DataError, match="a folder without annotations of a known layout"):
        CocoDataset(tmp_path)


def test_open_images_tables_are_not_theirs(tmp_path: Path) -> None:
    assert (
        find_layout(write(tmp_path / "boxes.csv", "ImageID,LabelName,XMin,XMax,YMin,YMax\n0a,/m/01,0,1,0,1\n")) is None
    )


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("a.png,cat,1,2,3", "row 2: expected 6 columns, found 5"),
        ("a.png,cat,1,2,3,", "row 2: expected a number, found ''"),
        ("a.png,,1,2,3,4", "row 2: a box without a class"),
        (",cat,1,2,3,4", "row 2: no file name"),
        ("a.png,cat,1,2,inf,4", "row 2: expected a finite number"),
    ],
)
def test_what_is_no_table(row: str, problem: str, tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    write(tmp_path / "t.csv", f"filename,class,xmin,ymin,xmax,ymax\n{row}\n")
    with pytest.raises(DataError, match=problem):
        objects_in(tmp_path)
