"""Readings that look right and are not: of each kind the data that were once misread, or refused although they are good."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from boxwright.base.errors import DataError
from boxwright.base.read_settings import LabelConvention
from boxwright.data.account import take_account
from boxwright.data.coordinates import find_problem, look_like_sizes
from boxwright.data.open_dataset import open_recognized
from boxwright.data.recognize import recognize
from boxwright.data.tool_files import Tool, write_for_tool
from boxwright.data.yolo_labels import read_rows, row_meaning
from tests.brought.check import boxes_on_their_colors
from tests.brought.layouts import coco, raccoon, voc, xywh
from tests.brought.pictures import named, pictures
from tests.data.test_coordinates import placed


def test_a_missing_picture_is_not_replaced_by_another_of_its_name(tmp_path: Path) -> None:
    both = [
        named(one, f"{folder}/{one.name}") for folder, seed in (("a", 0), ("b", 1)) for one in pictures(4, seed=seed)
    ]
    coco(both, tmp_path / "data")
    missing = next((tmp_path / "data").rglob("b/p2.png"))
    missing.unlink()
    training, _ = open_recognized(recognize(tmp_path / "data"))
    account = take_account(training)
    assert (account.samples, account.left_out.total()) == (7, 1)
    assert "b/p2.png" in next(iter(account.left_out.examples.values()))
    readable = [index for index in range(len(training)) if index not in account.unreadable]
    assert len(readable) == 7
    for index in readable:
        assert training[index].filename.endswith(both[index].name), "each has its own"


def test_exchanged_corners_explain_some_boxes_and_sizes_all() -> None:
    sizes = np.tile([72.0, 96.0], (5, 1))
    as_sizes = np.array(
        [[10, 10, 20, 8], [40, 20, 20, 30], [60, 30, 20, 20], [50, 40, 30, 10], [70, 60, 20, 20]], np.float64
    )
    assert look_like_sizes(as_sizes, sizes), "one of five leaves the picture, as a careless box does"
    exchanged = np.array([[10, 10, 30, 20], [90, 60, 60, 30], [80, 70, 50, 40], [20, 20, 60, 50]], np.float64)
    assert not look_like_sizes(exchanged, sizes[:4])
    assert not look_like_sizes(np.array([[10, 10, 20, 20]], np.float64), sizes[:1]), "in order"


def test_boxes_beyond_the_declared_size_do_not_refer_to_it() -> None:
    boxes: list[list[float]] = [[5, 5, 90, 60], [50, 40, 80, 70], [10, 10, 20, 20]]
    assert find_problem(placed(boxes, (72, 96), (48, 64)), "xyxy") is None
    inside: list[list[float]] = [[5, 5, 40, 30], [20, 20, 60, 44], [10, 10, 20, 20]]
    problem = find_problem(placed(inside, (72, 96), (48, 64)), "xyxy")
    assert problem is not None
    assert problem.rescale


def _meaning(tmp_path: Path, rows: list[str]) -> str:
    (tmp_path / "a.txt").write_text("\n".join(rows))
    return row_meaning(read_rows([tmp_path / "a.txt"]), None, str).kind


def test_few_outlines_with_a_tip_are_no_keypoints(tmp_path: Path) -> None:
    cones = [f"0 {x} .5 {x + 0.05} .3 {x + 0.1} .5 {x + 0.08} .52 {x + 0.02} .52" for x in (0.3, 0.35, 0.4)]
    assert _meaning(tmp_path, cones) == "outlines"


def test_keypoints_beside_plain_boxes_are_keypoints(tmp_path: Path) -> None:
    """The first four numbers are boxes in the picture, and as outlines the rows cross themselves."""
    random = np.random.default_rng(0)
    rows = []
    for _ in range(12):
        center, size = random.uniform(0.3, 0.7, 2), random.uniform(0.1, 0.3, 2)
        points = (center + size * random.uniform(-0.5, 0.5, (5, 2))).reshape(-1)
        rows.append("0 " + " ".join(f"{value:.4f}" for value in (*center, *size, *points)))
    assert _meaning(tmp_path, [*rows, "0 .5 .5 .2 .2"]) == "keypoints"


def test_confidence_and_id_beside_plain_boxes_are_no_triangles(tmp_path: Path) -> None:
    assert _meaning(tmp_path, ["0 .5 .5 .2 .2 .9 7", "0 .3 .5 .2 .2 .8 3", "1 .3 .3 .2 .2"]) == "boxes"
    assert _meaning(tmp_path, ["0 .5 .5 .6 .5 .5 .6", "1 .3 .3 .2 .2"]) == "outlines"


def test_label_maps_of_lists_that_differ_are_refused(tmp_path: Path) -> None:
    for name, classes in (("train", "red green blue"), ("test", "blue green red")):
        folder = voc(pictures(), tmp_path / "data" / name)
        items = [f'item {{ id: {number} name: "{item}" }}' for number, item in enumerate(classes.split(), 1)]
        (folder / "label_map.pbtxt").write_text("\n".join(items))
    with pytest.raises(DataError, match="differ; the classes must be the same"):
        recognize(tmp_path / "data")
    shutil.copy(tmp_path / "data" / "train" / "label_map.pbtxt", tmp_path / "data" / "test" / "label_map.pbtxt")
    training, _ = open_recognized(recognize(tmp_path / "data"))
    assert [item.name for item in training.categories] == ["red", "green", "blue"]
    assert boxes_on_their_colors(training) == 10


def test_the_contact_sheet_of_inspect_is_no_picture_of_the_data(tmp_path: Path) -> None:
    folder = voc(pictures(), tmp_path / "data")
    picture = next(folder.rglob("p0.png"))
    shutil.copy(picture, picture.with_name("contact-sheet.png"))
    assert take_account(open_recognized(recognize(folder))[0]).left_out.total() == 0


def test_a_list_of_another_split_is_not_read_for_a_missing_one(tmp_path: Path) -> None:
    path = coco(pictures(), tmp_path / "data")
    file = next(tmp_path.rglob("*.json"))
    content = json.loads(file.read_text())
    images = tmp_path / "data" / "images"
    (images / "train").mkdir(parents=True, exist_ok=True)
    for row in content["images"]:
        source = next(tmp_path.rglob(row["file_name"]))
        source.rename(images / "train" / source.name)
        row["file_name"] = f"images/val/{source.name}"
    file.write_text(json.dumps(content))
    account = take_account(open_recognized(recognize(path))[0])
    assert account.samples == 0


@pytest.mark.parametrize("write_one", [voc, raccoon])
def test_sizes_in_place_of_corners_are_refused_and_repaired(write_one: object, tmp_path: Path) -> None:
    made = pictures(8)
    sizes = [replace(one, objects=[replace(item, box=xywh(item)) for item in one.objects]) for one in made]
    path = write_one(sizes, tmp_path / "data")  # type: ignore[operator]
    with pytest.raises(DataError, match="labels_are sizes reads them so"):
        open_recognized(recognize(path))
    assert boxes_on_their_colors(open_recognized(recognize(path, labels_are=LabelConvention.SIZES))[0]) == 16


def test_a_bad_row_of_a_table_costs_its_picture_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    raccoon(pictures(), tmp_path / "data")
    table = next((tmp_path / "data").glob("*.csv"))
    lines = table.read_text().splitlines()
    lines[1] = lines[1].rsplit(",", 1)[0] + ",wide"
    table.write_text("\n".join(lines))
    training, _ = open_recognized(recognize(tmp_path / "data"))
    assert boxes_on_their_colors(training) == 8
    assert "row 2: expected a number, found 'wide'" in caplog.text
    assert take_account(training).left_out.total() == 1
    table.write_text("\n".join([lines[0], *(line.rsplit(",", 1)[0] + ",wide" for line in lines[1:])]))
    with pytest.raises(DataError, match="row 2: expected a number"):
        open_recognized(recognize(tmp_path / "data"))


def test_fiftyones_boxes_are_shares_of_the_upright_picture(tmp_path: Path) -> None:
    made = pictures(orientation=6, suffix=".jpg")
    folder = coco(made, tmp_path / "data")
    dataset, _ = open_recognized(recognize(folder))
    write_for_tool(dataset, tmp_path / "fiftyone" / "labels.json", Tool.FIFTYONE)
    (tmp_path / "fiftyone" / "data").mkdir()
    for one in made:
        shutil.copy(next(folder.rglob(one.name)), tmp_path / "fiftyone" / "data" / one.name)
    assert boxes_on_their_colors(open_recognized(recognize(tmp_path / "fiftyone"))[0]) == 10
