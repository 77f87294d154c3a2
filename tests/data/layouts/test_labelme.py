"""LabelMe's files: shapes, which picture a file is of, and what is not LabelMe's."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest

from boxwright.base.errors import DataError
from boxwright.data.coco import CocoDataset
from boxwright.data.layouts.table import find_layout
from tests.data.layouts.opened import draw, objects_in, write_json


def shape(label: Any, kind: Any, *points: list[Any]) -> dict[str, Any]:
    return {"label": label, "points": list(points), "group_id": None, "shape_type": kind, "flags": {}}


def labelme(*shapes: dict[str, Any], picture: str = "a.png", **more: Any) -> dict[str, Any]:
    known = {"imagePath": picture, "imageData": None, "imageHeight": 80, "imageWidth": 100}
    return {"version": "5.4.1", "flags": {}, "shapes": list(shapes), **known, **more}


def test_shapes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw(tmp_path, "a.png", "b.png")
    shapes = (
        # Drawn from the lower right corner to the upper left.
        shape("cat", "rectangle", [40, 60], [10, 20]),
        shape("dog", "polygon", [1, 2], [11, 2], [6, 12]),
        shape("dog", "circle", [50, 40], [53, 44]),
        shape("dog", None, [1, 1], [3, 1], [3, 5]),
        shape("dog", "point", [1, 1]),
        shape("dog", "linestrip", [1, 1], [2, 2]),
    )
    write_json(tmp_path / "a.json", labelme(*shapes))
    write_json(tmp_path / "b.json", labelme(picture="b.png"))
    write_json(tmp_path / "classes.json", ["cat", "dog"])
    assert getattr(find_layout(tmp_path), "name", None) == "LabelMe's JSON"
    with caplog.at_level(logging.WARNING):
        read = objects_in(tmp_path)
    assert read == {
        "a.png": [
            ("cat", [10, 20, 40, 60]),
            ("dog", [1, 2, 11, 12]),
            ("dog", [45, 35, 55, 45]),
            ("dog", [1, 1, 3, 5]),
        ],
        "b.png": [],
    }
    assert "left out: 1 JSON file that is not LabelMe's, 1 linestrip, 1 point" in caplog.text


def test_outlines_are_masks(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    write_json(tmp_path / "a.json", labelme(shape("dog", "polygon", [10, 10], [30, 10], [30, 20], [10, 20])))
    masks = CocoDataset(tmp_path, load_masks=True)[0].masks
    assert masks is not None
    assert masks[0, 15, 20] == 1
    assert masks[0, 15, 40] == 0


def test_files_lie_beside_or_below_the_pictures(tmp_path: Path) -> None:
    draw(tmp_path, "images/a.png")
    write_json(
        tmp_path / "labels" / "a.json", labelme(shape("x", "rectangle", [1, 2], [3, 4]), picture="..\\images\\a.png")
    )
    assert objects_in(tmp_path) == {"images/a.png": [("x", [1, 2, 3, 4])]}


def test_renamed_pictures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw(tmp_path, "image.png", "a.png", "b.png")
    for name, x in (("a", 1), ("b", 5)):
        write_json(tmp_path / f"{name}.json", labelme(shape("x", "rectangle", [x, 2], [9, 9]), picture="image.png"))
    with caplog.at_level(logging.WARNING):
        assert objects_in(tmp_path) == {"a.png": [("x", [1, 2, 9, 9])], "b.png": [("x", [5, 2, 9, 9])]}
    assert "imagePath of 2 files names another picture than the one beside it, which is used" in caplog.text


def test_one_file_is_data_too(tmp_path: Path) -> None:
    draw(tmp_path, "a.png", "b.png")
    for name in ("a", "b"):
        write_json(tmp_path / f"{name}.json", labelme(shape("x", "rectangle", [1, 2], [3, 4]), picture=f"{name}.png"))
    assert [*objects_in(tmp_path / "b.json")] == ["b.png"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (labelme(shape("x", "rectangle", [1, 2])), r"a.json: shape 1: points: expected \[\[x, y\], …\] of 2 points"),
        (labelme(shape("x", "polygon", [1, 2], [3, 4])), "of 3 points or more"),
        (labelme(shape("x", "rectangle", [1, 2], [3, "far"])), "shape 1: points: expected a number, found 'far'"),
        (labelme(shape("x", "rectangle", [1, 2], [3, math.nan])), "points: expected a finite number"),
        (labelme(shape("x", "rectangle", [1, 2], [3, 10**400])), "points: expected a finite number"),
        (labelme(shape("x", "rectangle", [1, 2], [3, 1e30])), "BOXWRIGHT_MAX_COORDINATE"),
        (labelme(shape("", "rectangle", [1, 2], [3, 4])), "shape 1: label: expected text"),
        (labelme(shape(7, "rectangle", [1, 2], [3, 4])), "shape 1: label: expected text, found 7"),
        ({**labelme(), "shapes": 5}, "shapes: expected a list, found 5"),
        ({**labelme(), "shapes": [5]}, "shape 1: expected an object, found 5"),
        (labelme(imagePath=None), "imagePath: expected text"),
        (labelme(imageHeight="x"), "imageHeight: expected a number"),
        (labelme(), "no object with a class in 1 images"),
    ],
)
def test_what_is_not_labelmes(content: dict[str, Any], problem: str, tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    write_json(tmp_path / "a.json", content)
    with pytest.raises(DataError, match=problem):
        objects_in(tmp_path)


def test_damaged_files_and_missing_pictures(tmp_path: Path) -> None:
    file = write_json(tmp_path / "a.json", labelme(shape("x", "rectangle", [1, 2], [3, 4])))
    with pytest.raises(DataError, match="a.png"):
        objects_in(tmp_path)
    file.write_text(file.read_text()[:-40])
    with pytest.raises(DataError, match="a.json: not JSON"):
        objects_in(tmp_path)
