"""VIA's region data, projects and CSV: shapes, and which attribute is the class."""

from __future__ import annotations

import csv
import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from boxwright.base.errors import DataError
from boxwright.data.layouts.table import find_layout
from tests.data.layouts.opened import draw, objects_in, write_json

RECT = {"name": "rect", "x": 10, "y": 20, "width": 30, "height": 40}
SHAPES = [
    (RECT, [10, 20, 40, 60]),
    ({"name": "circle", "cx": 50, "cy": 40, "r": 5}, [45, 35, 55, 45]),
    ({"name": "ellipse", "cx": 50, "cy": 40, "rx": 10, "ry": 5, "theta": math.pi / 2}, [45, 30, 55, 50]),
    ({"name": "polygon", "all_points_x": [1, 11, 6], "all_points_y": [2, 2, 12]}, [1, 2, 11, 12]),
]


def region(shape: Any, **attributes: Any) -> dict[str, Any]:
    return {"shape_attributes": shape, "region_attributes": attributes}


def via(*regions: dict[str, Any], name: str = "a.png") -> dict[str, Any]:
    return {f"{name}123": {"filename": name, "size": 123, "regions": list(regions), "file_attributes": {}}}


@pytest.mark.parametrize("is_project", [False, True])
def test_shapes(is_project: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw(tmp_path, "a.png", "b.png")
    regions = [region(shape, kind="x") for shape, _ in SHAPES]
    content = via(*regions, region({"name": "point", "cx": 1, "cy": 2}, kind="x")) | via(name="b.png")
    stored = {"_via_settings": {}, "_via_img_metadata": content, "_via_attributes": {}} if is_project else content
    file = write_json(tmp_path / "any.json", stored)
    assert getattr(find_layout(tmp_path), "name", None) == "VGG Image Annotator's regions"
    with caplog.at_level(logging.WARNING):
        read = objects_in(file)
    assert [box for _, box in read["a.png"]] == [pytest.approx(box, abs=1e-4) for _, box in SHAPES]
    assert read["b.png"] == []
    assert "left out: 1 point" in caplog.text


def test_the_named_file_wins(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    write_json(tmp_path / "via_region_data.json", via(region(RECT, c="new")))
    write_json(tmp_path / "via_project.json", {"_via_settings": {}, "_via_img_metadata": via(region(RECT, c="old"))})
    assert objects_in(tmp_path) == {"a.png": [("new", [10, 20, 40, 60])]}


def test_the_first_version_numbers_regions(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    content = via()
    content["a.png123"]["regions"] = {"0": region(RECT, c="x"), "1": region(RECT, c="y")}
    write_json(tmp_path / "via.json", content)
    assert [label for label, _ in objects_in(tmp_path)["a.png"]] == ["x", "y"]


def test_csv(tmp_path: Path) -> None:
    draw(tmp_path, "a.png", "b.png")
    header = "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes"
    with (tmp_path / "via.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header.split(","))
        writer.writerow(["a.png", 1, "{}", 1, 0, json.dumps(RECT), json.dumps({"c": "x"})])
        writer.writerow(["b.png", 1, "{}", 0, 0, "{}", "{}"])
    assert objects_in(tmp_path) == {"a.png": [("x", [10, 20, 40, 60])], "b.png": []}


@pytest.mark.parametrize(
    ("attributes", "labels", "said"),
    [
        ([{}, {}], ["object", "object"], "no region has an attribute: all are of the class 'object'"),
        ([{"c": {"x": True, "y": False}}, {"c": "z"}], ["x", "z"], ""),
        (
            [{"id": "1", "label": "x"}, {"id": "2", "label": "y"}],
            ["x", "y"],
            "the class is the attribute 'label'; not read: 'id'",
        ),
        ([{"kind": "x", "note": ""}, {"kind": "y", "note": "hm"}], ["x", "y"], "the class is the attribute 'kind'"),
        ([{"c": "x"}, {"c": ""}], ["x", "ignore x"], "1 region without the attribute 'c', ignored"),
    ],
)
def test_classes(
    attributes: list[dict[str, Any]], labels: list[str], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draw(tmp_path, "a.png")
    write_json(tmp_path / "via.json", via(*(region(RECT, **each) for each in attributes)))
    with caplog.at_level(logging.WARNING):
        assert [label for label, _ in objects_in(tmp_path)["a.png"]] == labels
    assert said in caplog.text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (via(region({**RECT, "x": None}, c="x")), "'a.png123': region 1: x: expected a number, found None"),
        (via(region({**RECT, "x": math.inf}, c="x")), "region 1: x: expected a finite number"),
        (via(region([], c="x")), "region 1: shape_attributes: expected an object"),
        (via(region(RECT, c={"x": True, "y": True})), "region 1: c: expected one class, found x, y"),
        (via(region({"name": "polygon", "all_points_x": [1, 2, 3], "all_points_y": [1]}, c="x")), "3 x and 1 y"),
        ({"k": {"filename": 3, "regions": []}}, "'k': filename: expected text, found 3"),
        ({"k": {"filename": "a.png", "regions": 7}}, "'k': regions: expected a list, found 7"),
        ({"k": 5, "filename": "", "regions": ""}, "'k': expected an object, found 5"),
    ],
)
def test_what_is_not_vias(content: dict[str, Any], problem: str, tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    write_json(tmp_path / "via_region_data.json", content)
    with pytest.raises(DataError, match=problem):
        objects_in(tmp_path)
