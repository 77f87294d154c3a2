"""Create ML's, VoTT's and Label Studio's smaller JSON, each one file for all pictures."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest

from boxwright.base.errors import DataError
from boxwright.data.layouts.table import find_layout
from tests.data.layouts.opened import draw, objects_in, write_json


def createml(**coordinates: Any) -> list[dict[str, Any]]:
    place = {"x": 25, "y": 40, "width": 30, "height": 40, **coordinates}
    return [{"image": "a.png", "annotations": [{"label": "cat", "coordinates": place}]}]


@pytest.mark.parametrize("name", ["_annotations.createml.json", "any.json"])
def test_createml(name: str, tmp_path: Path) -> None:
    draw(tmp_path, "a.png", "b.png")
    write_json(tmp_path / name, [*createml(), {"image": "b.png", "annotations": []}])
    assert getattr(find_layout(tmp_path), "name", None) == "Create ML's JSON"
    assert objects_in(tmp_path) == {"a.png": [("cat", [10, 20, 40, 60])], "b.png": []}


def test_createml_without_objects_first(tmp_path: Path) -> None:
    draw(tmp_path, "a.png", "b.png")
    first = {"imagefilename": "b.png", "annotation": []}
    write_json(tmp_path / "any.json", [first, {"imagefilename": "a.png", "annotation": createml()[0]["annotations"]}])
    assert objects_in(tmp_path) == {"b.png": [], "a.png": [("cat", [10, 20, 40, 60])]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (createml(x="left"), "'a.png': annotation 1: x: expected a number, found 'left'"),
        (createml(height=math.nan), "height: expected a finite number"),
        (createml(width=-3), "a width and height of -3, 40"),
        ([{"image": "a.png", "annotations": [{"label": "cat"}]}], "coordinates: expected an object"),
        ([{"image": "a.png", "annotations": [{"coordinates": {}}]}], "label: expected text"),
        ([{"image": "a.png", "annotations": [5]}], "annotation 1: expected an object"),
        ([*createml(), 5], "image 2: expected an object, found 5"),
        ([*createml(), {}], "image 2: image: expected text"),
    ],
)
def test_what_is_not_createmls(content: Any, problem: str, tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    file = write_json(tmp_path / "_annotations.createml.json", content)
    with pytest.raises(DataError, match=problem):
        objects_in(file)


def vott(region: Any) -> dict[str, Any]:
    asset = {"id": "k", "name": "a%20b.png", "path": "file:/x/a%20b.png", "size": {"width": 100, "height": 80}}
    return {"name": "p", "tags": [{"name": "cat"}], "assets": {"k": {"asset": asset, "regions": [region]}}}


REGION = {"type": "RECTANGLE", "tags": ["cat"], "boundingBox": {"left": 10, "top": 20, "width": 30, "height": 40}}


def test_vott(tmp_path: Path) -> None:
    draw(tmp_path, "a b.png")
    file = write_json(tmp_path / "p-export.json", vott(REGION))
    assert getattr(find_layout(file), "name", None) == "VoTT's JSON"
    assert objects_in(tmp_path) == {"a b.png": [("cat", [10, 20, 40, 60])]}


@pytest.mark.parametrize(
    ("region", "problem"),
    [
        ({**REGION, "tags": ["a", "b"]}, "asset k: region 1: expected one tag"),
        ({**REGION, "tags": []}, "expected one tag"),
        ({**REGION, "boundingBox": None}, "boundingBox: expected an object"),
        ({**REGION, "boundingBox": {"left": 1}}, "region 1: top: expected a number"),
        ({**REGION, "type": "POLYGON", "points": [{"x": 1}]}, "points: expected a number"),
        (4, "region 1: expected an object"),
    ],
)
def test_what_is_not_votts(region: Any, problem: str, tmp_path: Path) -> None:
    file = write_json(tmp_path / "p-export.json", vott(region))
    with pytest.raises(DataError, match=problem):
        objects_in(file)


RESULT = {"x": 10.0, "y": 25.0, "width": 30.0, "height": 50.0, "rotation": 0, "rectanglelabels": ["cat"]}
SIZE = {"original_width": 100, "original_height": 80}


def test_json_min(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw(tmp_path, "images/a.png", "images/b.png", "images/c.png")
    polygon = {"points": [[1, 10], [11, 10], [6, 20]], "polygonlabels": ["dog"], **SIZE}
    tasks = [
        {"image": "/data/upload/1/0a1b2c3d-a.png", "id": 1, "label": [RESULT | SIZE, polygon], "annotation_id": 5},
        {"image": "/data/upload/1/0a1b2c3e-b.png", "id": 2, "annotator": 1, "annotation_id": 6},
        {"image": "/data/upload/1/0a1b2c3f-c.png", "id": 3},
    ]
    write_json(tmp_path / "project-min.json", tasks)
    assert getattr(find_layout(tmp_path), "name", None) == "Label Studio's JSON-MIN"
    with caplog.at_level(logging.WARNING):
        read = objects_in(tmp_path)
    assert read == {"a.png": [("cat", [10, 20, 40, 60]), ("dog", [1, 8, 11, 16])], "b.png": []}
    assert "left out: 1 task without annotations" in caplog.text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"x": None}, "task 1: result 1: x: expected a number"),
        ({"original_width": None}, "original_width: expected"),
        ({"rectanglelabels": ["a", "b"]}, "expected one label"),
    ],
)
def test_what_is_not_json_min(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    tasks = [{"image": "/data/upload/1/0a1b2c3d-a.png", "id": 1, "label": [RESULT | SIZE | change]}]
    with pytest.raises(DataError, match=problem):
        objects_in(write_json(tmp_path / "min.json", tasks))
