"""Data put right, written to a new place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import boxwright as bw
from boxwright.data.coco import CocoDataset
from boxwright.data.convert import write_coco
from boxwright.data.open_dataset import open_recognized
from boxwright.data.recognize import recognize
from boxwright.data.shapes import ShapesDataset
from boxwright.training.preflight.repair import repair


def data(folder: Path, seed: int, count: int) -> tuple[Path, dict[str, Any]]:
    path = write_coco(ShapesDataset(count, seed=seed, size=(64, 80)), folder / "instances.json")
    return path, json.loads(path.read_text())


def test_what_is_wrong_is_put_right_and_what_was_there_stays(tmp_path: Path) -> None:
    train_file, train = data(tmp_path / "train", 1, 10)
    eval_file, held_out = data(tmp_path / "eval", 2, 6)
    images = tmp_path / "train" / "images"
    # The third image's first box crosses the border by 10 pixels, its second is given by exchanged corners; the eighth
    # image gets a box without area.
    third = [row for row in train["annotations"] if row["image_id"] == train["images"][2]["id"]]
    third[0]["bbox"] = [70, 10, 20, 30]
    exchanged = {
        "image_id": third[0]["image_id"],
        "category_id": 1,
        "iscrowd": 0,
        "id": 9998,
        "bbox": [40, 50, -20, -30],
    }
    flat = {**exchanged, "id": 9999, "image_id": train["images"][7]["id"], "bbox": [5, 5, 0, 10]}
    train["annotations"] += [exchanged, flat]
    third[0].pop("segmentation", None)
    third[0]["area"] = 600
    # The fourth cannot be read, the sixth is the fifth again.
    (images / train["images"][3]["file_name"]).write_bytes(b"damaged")
    (images / train["images"][5]["file_name"]).write_bytes((images / train["images"][4]["file_name"]).read_bytes())
    # And the evaluation data have the first of the training data.
    first = (images / train["images"][0]["file_name"]).read_bytes()
    (tmp_path / "eval" / "images" / held_out["images"][1]["file_name"]).write_bytes(first)
    train_file.write_text(json.dumps(train))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    done = repair(CocoDataset(train_file), CocoDataset(eval_file), tmp_path / "mended")
    assert dict(done.counts) == {
        "training: unreadable samples, removed": 1,
        "training: copies of other images with different annotations, removed; compare with the first": 1,
        "evaluation: near-duplicates of training images, removed": 1,
        "training: images with a box that cannot be repaired, removed": 1,
        "boxes with exchanged corners, swapped": 1,
        "boxes across the border, clipped": 1,
    }
    assert {path: path.read_bytes() for path in before} == before
    new_train, new_held_out = open_recognized(recognize(tmp_path / "mended"))
    assert new_held_out is not None
    assert (len(new_train), len(new_held_out)) == (7, 5)
    samples = {new_train[number].filename.rpartition("/")[2]: new_train[number] for number in range(7)}
    clipped = samples[train["images"][2]["file_name"].rpartition("/")[2]]
    assert [70.0, 10.0, 80.0, 40.0] in clipped.boxes.tolist()
    assert [20.0, 20.0, 40.0, 50.0] in clipped.boxes.tolist()
    assert len(clipped.boxes) == len(third) + 1
    assert Path(train["images"][7]["file_name"]).name not in samples, "it must not become background"
    assert clipped.areas[clipped.boxes.tolist().index([70.0, 10.0, 80.0, 40.0])] == pytest.approx(300)
    assert [item.name for item in new_train.categories] == [row["name"] for row in train["categories"]]
    assert (tmp_path / "mended" / "label_map.pbtxt").is_file()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    path, _ = data(tmp_path / "train", 1, 3)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(bw.OutputError, match="written to a new folder"):
        repair(CocoDataset(path), None, tmp_path / "out")
    assert [item.name for item in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_nothing_left(tmp_path: Path) -> None:
    path, content = data(tmp_path / "train", 1, 2)
    for image in content["images"]:
        (tmp_path / "train" / "images" / image["file_name"]).write_bytes(b"damaged")
    with pytest.raises(bw.DataError, match="no data remain for training"):
        repair(CocoDataset(path), None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sound_data_stay_as_they_are(tmp_path: Path) -> None:
    path, _ = data(tmp_path / "train", 1, 5)
    done = repair(CocoDataset(path), None, tmp_path / "out")
    assert not done.counts
    before, after = CocoDataset(path), open_recognized(recognize(tmp_path / "out"))[0]
    for number in range(5):
        assert after[number].boxes == pytest.approx(before[number].boxes)
        assert after[number].labels.tolist() == before[number].labels.tolist()
        assert after.encoded(number)[0] == before.encoded(number)[0]


def test_outlines_come_along(tmp_path: Path) -> None:
    path, _ = data(tmp_path / "train", 1, 4)
    train, _ = open_recognized(recognize(path), masks=True)
    repair(train, None, tmp_path / "out")
    after = CocoDataset(tmp_path / "out" / "train" / "_annotations.coco.json", load_masks=True)
    before = CocoDataset(path, load_masks=True)
    for number in range(4):
        assert (after[number].masks == before[number].masks).all()
        assert after[number].masks.any()


def test_copies_with_the_same_annotations_are_told_apart_from_others(tmp_path: Path) -> None:
    path, content = data(tmp_path / "train", 1, 3)
    first, second = content["images"][:2]
    images = tmp_path / "train" / "images"
    (images / second["file_name"]).write_bytes((images / first["file_name"]).read_bytes())
    rows = [row for row in content["annotations"] if row["image_id"] != second["id"]]
    rows += [
        {**row, "id": 1000 + n, "image_id": second["id"]}
        for n, row in enumerate(rows)
        if row["image_id"] == first["id"]
    ]
    path.write_text(json.dumps({**content, "annotations": rows}))
    done = repair(CocoDataset(path), None, tmp_path / "out")
    assert dict(done.counts) == {"training: copies of other images, removed": 1}


def test_what_was_interrupted_is_not_taken_for_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = data(tmp_path / "train", 1, 3)

    def broken(what: str, items: Any) -> Any:
        if what == "write valid":
            raise KeyboardInterrupt
        return items

    with pytest.raises(KeyboardInterrupt):
        repair(CocoDataset(path), CocoDataset(data(tmp_path / "eval", 2, 3)[0]), tmp_path / "out", broken)
    with pytest.raises(bw.DataError, match="incomplete"):
        recognize(tmp_path / "out")
