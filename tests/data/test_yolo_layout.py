"""YOLO's data in the layouts and encodings of many tools and machines."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from boxwright.base.errors import DataError
from boxwright.data.recognize import recognize
from boxwright.data.yolo import YoloDataset
from boxwright.data.yolo_layout import find_yolo, yolo_splits
from tests.data.yolo_folders import folder, picture, row

ROW = row(1, 0.5, 0.5, 0.5, 0.2)


def notes(data: YoloDataset) -> list[str]:
    return [*data.notices.assumed.lines(), *data.notices.files.lines()]


def pair(root: Path, image: str, label: str, text: str = ROW) -> None:
    picture(root / image)
    (root / label).parent.mkdir(parents=True, exist_ok=True)
    (root / label).write_text(text)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def read(root: Path, split: str = "train", **options: bool) -> YoloDataset:
    found = find_yolo(root)
    assert found is not None
    assert recognize(root).kind == "YOLO"
    data = YoloDataset(found, split, **options)  # type: ignore[arg-type]
    assert [item.name for item in data.categories] == ["a", "b"]
    assert [data[index].labels.tolist() for index in range(len(data))] == [[1]] * len(data)
    return data


YAML = "names: [a, b]\n"
NAMES = "a\nb\n\n"
# Lists of lists, of 16 million texts.
LAUGHS = "\n".join(
    f"{name}: &{name} [{', '.join([f'*{below}' if below else 'x'] * 8)}]"
    for below, name in zip(["", *"abcdefg"], "abcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("pairs", "files", "splits"),
    [
        # labelImg, Label Studio, and both with splits.
        (["p.png p.txt"], {"classes.txt": NAMES}, {"train": ["."]}),
        (
            ["images/p.png labels/p.txt"],
            {"classes.txt": NAMES, "notes.json": '{"categories": []}'},
            {"train": ["images"]},
        ),
        (["images/p.png labels/p.txt"], {"labels/classes.txt": NAMES}, {"train": ["images"]}),
        (
            ["images/train/p.png labels/train/p.txt", "images/val/q.png labels/val/q.txt"],
            {"classes.txt": NAMES},
            {"train": ["images/train"], "val": ["images/val"]},
        ),
        (
            ["train/images/p.png train/labels/p.txt", "valid/images/q.png valid/labels/q.txt"],
            {"classes.txt": NAMES},
            {"train": ["train/images"], "valid": ["valid/images"]},
        ),
        # Roboflow's for Darknet.
        (
            ["train/p.png train/p.txt", "valid/q.png valid/q.txt"],
            {"train/_darknet.labels": NAMES, "valid/_darknet.labels": NAMES},
            {"train": ["train"], "valid": ["valid"]},
        ),
        # CVAT's, with and without obj.data.
        (
            ["obj_train_data/p.png obj_train_data/p.txt"],
            {"obj.data": "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\n", "obj.names": NAMES}
            | {"train.txt": "data/obj_train_data/p.png\n"},
            {"train": ["data/train.txt"]},
        ),
        (
            ["obj_train_data/p.png obj_train_data/p.txt"],
            {"obj.names": NAMES, "train.txt": "data/obj_train_data/p.png\n"},
            {"train": ["train.txt"]},
        ),
        # Any .yaml, and one with quoted keys.
        (
            ["images/p.png labels/p.txt"],
            {"mine.yaml": f"train: images\n{YAML}", "args.yaml": "a: 1"},
            {"train": ["images"]},
        ),
        (
            ["images/p.png labels/p.txt"],
            {"x.yml": '"train": images\n"names": {"0": a, "1": b}\n'},
            {"train": ["images"]},
        ),
    ],
)
def test_layouts(tmp_path: Path, pairs: list[str], files: dict[str, str], splits: dict[str, list[str]]) -> None:
    for both in pairs:
        pair(tmp_path, *both.split())
    write(tmp_path, files)
    found = find_yolo(tmp_path)
    assert found is not None
    assert yolo_splits(found) == splits
    for split in splits:
        assert len(read(tmp_path, split)) == 1


def test_a_yaml_beside_the_folder(tmp_path: Path) -> None:
    pair(tmp_path / "mine", "images/train/p.png", "labels/train/p.txt")
    write(
        tmp_path, {"mine.yaml": f"path: mine\ntrain: images/train\n{YAML}", "b.yaml": f"path: b\ntrain: images\n{YAML}"}
    )
    assert find_yolo(tmp_path / "mine") == tmp_path / "mine.yaml"
    assert len(read(tmp_path / "mine")) == 1
    with pytest.raises(DataError, match=r"which of b\.yaml and mine\.yaml\? pass one of them"):
        find_yolo(tmp_path)


def test_what_is_no_yolo(tmp_path: Path) -> None:
    assert find_yolo(tmp_path) is None
    # VOC as labelImg writes it; KITTI's rows begin with words.
    pair(tmp_path / "voc", "p.png", "p.txt")
    write(tmp_path / "voc", {"classes.txt": NAMES, "p.xml": "<annotation/>"})
    pair(tmp_path / "kitti", "images/p.png", "labels/p.txt", "Car 0 0 1.5 10 20 30 40\n")
    write(tmp_path / "kitti", {"classes.txt": NAMES})
    assert find_yolo(tmp_path / "voc") is find_yolo(tmp_path / "kitti") is None
    pair(tmp_path / "bare", "images/p.png", "labels/p.txt")
    assert find_yolo(tmp_path / "bare") is None
    with pytest.raises(DataError, match="nothing names the classes .* write them into classes.txt there"):
        YoloDataset(tmp_path / "bare")
    with pytest.raises(DataError, match="no data.yaml"):
        YoloDataset(tmp_path / "gone")


def test_names_that_disagree(tmp_path: Path) -> None:
    pair(tmp_path, "train/p.png", "train/p.txt")
    pair(tmp_path, "val/q.png", "val/q.txt")
    write(tmp_path, {"train/classes.txt": NAMES, "val/classes.txt": "b\na\n"})
    with pytest.raises(DataError, match="has a, b, but .* b, a: the same number would mean two classes"):
        YoloDataset(tmp_path)


@pytest.mark.parametrize("name", ["Labels", "label", "Label", "labelTxt"])
def test_labels_in_other_folders(tmp_path: Path, name: str) -> None:
    pair(tmp_path, "train/images/p.png", f"train/{name}/p.txt")
    write(tmp_path, {"data.yaml": f"train: train/images\n{YAML}"})
    assert notes(read(tmp_path)) == [
        f"label files in a folder {name}, not in train/labels: 1 ({tmp_path}/train/{name})"
    ]


def test_a_folder_above_called_images(tmp_path: Path) -> None:
    root = tmp_path / "images" / "site"
    pair(root, "train/p.png", "train/p.txt")
    write(root, {"data.yaml": f"train: train\n{YAML}"})
    assert notes(read(root)) == [f"label files beside their pictures, not in site/train: 1 ({root}/train)"]


def test_no_labels_at_all(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "images" / "p.png")
    write(tmp_path, {"data.yaml": f"train: train/images\n{YAML}"})
    with pytest.raises(DataError, match=rf"no label file for any of 1 pictures: {tmp_path}/train/labels/p\.txt and"):
        YoloDataset(tmp_path)


def test_endings_and_left_overs(tmp_path: Path) -> None:
    names = ["a.jfif", "b.GIF", "c.ppm", "d.JPG", "e.webp"]
    for name in names:
        folder(tmp_path, {name[0]: ROW}, f"train: images\n{YAML}")
        (tmp_path / "images" / f"{name[0]}.png").rename(tmp_path / "images" / name)
    for name in ("images/._a.jfif", "labels/._a.txt", "images/__MACOSX/a.jpg", "._data.yaml"):
        write(tmp_path, {name: "\0"})
    data = read(tmp_path)
    assert [path.name for path in data.images] == names
    assert notes(data) == []


def test_pictures_and_label_files_without_each_other(tmp_path: Path) -> None:
    folder(tmp_path, {f"p{number}": ROW for number in range(4)}, f"train: images\n{YAML}")
    picture(tmp_path / "images" / "more.png")
    write(tmp_path, {"labels/less.txt": ROW, "labels/README.txt": "about these files", "labels/classes.txt": NAMES})
    data = YoloDataset(tmp_path)
    assert [len(data[index].boxes) for index in range(5)] == [0, 1, 1, 1, 1]
    assert notes(data) == [
        "pictures without a label file: used as pictures without objects: 1 (more.png)",
        "label files without a picture: 1 (less.txt)",
    ]


def test_stems_that_disagree(tmp_path: Path) -> None:
    folder(tmp_path, {"p0": ROW}, f"train: images\n{YAML}")
    for number in range(1, 5):
        picture(tmp_path / "images" / f"p{number}.png")
        write(tmp_path, {f"labels/frame_{number}.txt": ROW})
    with pytest.raises(
        DataError,
        match=r"pictures have no label file, such as p1\.png, and 4 label files no picture, such as frame_1\.txt",
    ):
        YoloDataset(tmp_path)


def test_label_files_of_another_split_are_no_orphans(tmp_path: Path) -> None:
    folder(tmp_path, {f"p{number}": ROW for number in range(6)}, f"train: train.txt\nval: val.txt\n{YAML}")
    write(tmp_path, {"train.txt": "".join(f"images/p{n}.png\n" for n in range(5)), "val.txt": "images/p5.png\n"})
    assert notes(read(tmp_path, "val")) == []
    assert len(read(tmp_path)) == 5


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    root = folder(tmp_path, {"é": ROW}, "")
    (root / "list.txt").write_bytes("images/é.png \r\n\r\n".encode(encoding))
    (root / "labels" / "é.txt").write_bytes(ROW.encode(encoding))
    (root / "data.yaml").write_bytes("train: list.txt\nnames: [ä, b]\n".encode(encoding))
    data = YoloDataset(root)
    assert data.categories.by_label(0).name == "ä"
    assert data[0].labels.tolist() == [1]


def test_unicode_forms_and_case(tmp_path: Path) -> None:
    root = folder(tmp_path, {"x": ROW}, f"train: images\n{YAML}")
    (root / "images" / "x.png").rename(root / "images" / f"{unicodedata.normalize('NFC', 'é')}.png")
    (root / "labels" / "x.txt").rename(root / "labels" / f"{unicodedata.normalize('NFD', 'É')}.TXT")
    assert len(notes(read(root))) == 1


@pytest.mark.parametrize(
    ("train", "note"),
    [
        ("images/train", ""),
        ("./images/train/", ""),
        ("../images/train", ""),
        (r"images\train", "another system's"),
        (r"H:\datasets\mine\images\train", "another machine's"),
        ("/home/somebody/mine/Images/train", "another machine's"),
    ],
)
def test_paths_of_other_machines(tmp_path: Path, train: str, note: str) -> None:
    pair(tmp_path, "images/train/p.png", "labels/train/p.txt")
    write(tmp_path, {"data.yaml": f"train: '{train}'\n{YAML}"})
    data = read(tmp_path)
    assert [note in line for line in notes(data)] == [True] * bool(note)
    write(tmp_path, {"data.yaml": f"path: /home/somebody/mine\ntrain: images/train\nval: images/gone\n{YAML}"})
    assert len(read(tmp_path)) == 1
    assert list(yolo_splits(tmp_path / "data.yaml")) == ["train"]


def test_two_splits_are_not_one_folder(tmp_path: Path) -> None:
    pair(tmp_path, "images/p.png", "labels/p.txt")
    write(tmp_path, {"data.yaml": f"train: /x/train/images\nval: /x/val/images\n{YAML}"})
    with pytest.raises(DataError, match=r"train \(/x/train/images\) and val \(/x/val/images\) would both be"):
        YoloDataset(tmp_path)


def test_lines_of_lists(tmp_path: Path) -> None:
    for number in range(5):
        pair(tmp_path / "mine", f"images/p{number}.png", f"labels/p{number}.txt")
    lines = [
        "images/p0.png",
        "./images/p1.png",
        r"images\p2.png",
        "/home/x/images/p3.png",
        "https://x.org/images/p4.png",
    ]
    write(
        tmp_path,
        {
            "mine/lists/train.txt": "\n".join([*lines, "images/gone.png"]),
            "mine/data.yaml": f"train: lists/train.txt\n{YAML}",
        },
    )
    data = YoloDataset(tmp_path / "mine")
    assert [path.name for path in data.images] == [*(f"p{number}.png" for number in range(5)), "gone.png"]
    assert data.notices.assumed.total() - 1 == 3, "one has no label file"
    with pytest.raises(DataError, match="line 6: no picture 'images/gone.png'"):
        data[5]


def test_lines_relative_to_their_list(tmp_path: Path) -> None:
    pair(tmp_path / "mine", "images/p.png", "labels/p.txt")
    write(tmp_path, {"mine/lists/train.txt": "../images/p.png", "mine/data.yaml": f"train: lists/train.txt\n{YAML}"})
    assert len(read(tmp_path / "mine")) == 1
    pair(tmp_path, "q.png", "q.txt")
    # One that has another's name below would be that one.
    write(tmp_path, {"mine/lists/train.txt": f"../images/p.png\n{tmp_path}/q.png"})
    with pytest.raises(DataError, match="allow_paths_outside"):
        YoloDataset(tmp_path / "mine")
    assert len(YoloDataset(tmp_path / "mine", allow_paths_outside=True)) == 2


def test_other_files_beside(tmp_path: Path) -> None:
    pair(tmp_path / "mine", "images/p.png", "labels/p.txt")
    write(tmp_path, {"other.yaml": "names: [a]\ntrain: [", "mine/classes.txt": NAMES})
    (tmp_path / "mine" / "x.yaml").write_bytes(b"\x81\xff")
    assert find_yolo(tmp_path / "mine") == tmp_path / "mine"
    (tmp_path / "mine" / "classes.txt").unlink()
    assert find_yolo(tmp_path / "mine") is None


@pytest.mark.parametrize(
    ("yaml", "wanted"),
    [
        ("names: {0: a, 2: b, 5: c}", r"class 1 is missing \(there are 0, 2, 5\)"),
        ("names: {x: a}", "expected a list of class names"),
        ("names: [a, null]", "class 1 has no name; write one called null in quotes"),
        ("names: [2024-01-01]", "class 0 is a date: write it as text"),
        ("nc: 3", r"nc is there, but no names: add them"),
        ("nc: 3\nnames: [a]", "nc is 3, but names has 1; correct one of the two"),
        ("names: [a]\ntrain: {a: 1}", "train: expected the name of a folder"),
        ("names: [a]\npath: [a]", "path: expected the name of a folder"),
        ('names: [a]\nval: "C:\\data"', r"not YAML: .*; in paths, write / in place of \\"),
        # 343 bytes that stand for gigabytes, where a number or a name of a class is expected.
        *((f"{LAUGHS}\n{rest}", "1,000,000 allowed") for rest in ("nc: *h\nnames: [a]", "names: *h", "*h : a")),
        ("names: " + "[" * 3000, "not YAML"),
    ],
)
def test_bad_yaml(tmp_path: Path, yaml: str, wanted: str) -> None:
    folder(tmp_path, {"p": ROW}, yaml if "train" in yaml else f"train: images\n{yaml}\n")
    with pytest.raises(DataError, match=wanted):
        YoloDataset(tmp_path)


def test_yaml_aliases_and_numbers(tmp_path: Path) -> None:
    folder(tmp_path, {"p": ROW}, "train: &here images\nval: *here\nnames: {'0': a, '1': 7}\nnc: '2'\n")
    assert [item.name for item in YoloDataset(tmp_path, "val").categories] == ["a", "7"]


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"obj.data": "names = obj.names\ntrain = train.txt\n"}, "no such folder or list: .*obj.names"),
        ({"obj.data": "names = obj.names\n", "obj.names": "a\n\nb\n"}, "expected a class on each line, found an empty"),
        ({"obj.data": "names = obj.names\n", "obj.names": ""}, "expected a class on each line"),
    ],
)
def test_bad_darknet(tmp_path: Path, files: dict[str, str], wanted: str) -> None:
    write(folder(tmp_path, {"p": ROW}, ""), files)
    with pytest.raises(DataError, match=wanted):
        YoloDataset(tmp_path)
