"""Supervisely's projects and Datumaro's data sets."""

from __future__ import annotations

import base64
import io
import logging
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from boxwright.base.errors import DataError
from boxwright.data.coco import CocoDataset
from boxwright.data.layouts.table import find_layout
from tests.data.layouts.opened import classes_in, draw, objects_in, write_json

META = {"classes": [{"title": "dog", "shape": "polygon"}, {"title": "cat", "shape": "rectangle"}], "tags": []}


def drawn(kind: str, *points: list[Any], label: Any = "cat", **more: Any) -> dict[str, Any]:
    return {"classTitle": label, "geometryType": kind, "points": {"exterior": [*points], "interior": []}, **more}


def annotation(*objects: Any) -> dict[str, Any]:
    return {"description": "", "tags": [], "size": {"height": 80, "width": 100}, "objects": [*objects]}


def bitmap(width: int, height: int) -> str:
    buffer = io.BytesIO()
    Image.new("L", (width, height), 255).save(buffer, format="PNG")
    return base64.b64encode(zlib.compress(buffer.getvalue())).decode()


def test_supervisely(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw(tmp_path, "one/img/a.png", "two/img/b.jpg")
    write_json(tmp_path / "meta.json", META)
    mask = {"origin": [4, 5], "data": bitmap(3, 2)}
    objects = [
        drawn("rectangle", [40, 20], [10, 60]),
        drawn("polygon", [1, 2], [11, 2], [6, 12], label="dog"),
        drawn("bitmap", bitmap=mask, label="dog"),
        drawn("point", [1, 2]),
    ]
    write_json(tmp_path / "one/ann/a.png.json", annotation(*objects))
    write_json(tmp_path / "two/ann/b.json", annotation())
    with caplog.at_level(logging.WARNING):
        read = objects_in(tmp_path)
    assert read == {
        "one/img/a.png": [("cat", [10, 20, 40, 60]), ("dog", [1, 2, 11, 12]), ("dog", [4, 5, 7, 7])],
        "two/img/b.jpg": [],
    }
    assert "left out: 1 point" in caplog.text
    assert classes_in(tmp_path / "two") == ["dog", "cat"], "the project's, as all its data sets have them"
    assert [*objects_in(tmp_path / "meta.json")] == ["one/img/a.png", "two/img/b.jpg"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (drawn("rectangle", [1, 2]), r"a.png.json: object 1: exterior: expected \[\[x, y\], …\] of 2 points"),
        (drawn("rectangle", [1, 2], [3, None]), "exterior: expected a number"),
        (drawn("rectangle", [1, 2], [3, 4], label="bird"), r"class 'bird' is not among the classes \(dog, cat\)"),
        (drawn("bitmap", bitmap={"origin": [1, 2], "data": "%"}), "object 1: bitmap"),
        (drawn("bitmap", bitmap={"origin": [1, 2], "data": "AAAA"}), "object 1: bitmap"),
        (drawn("bitmap", bitmap={"origin": 7, "data": bitmap(1, 1)}), "origin: expected"),
        (5, "object 1: expected an object"),
    ],
)
def test_what_is_not_superviselys(given: Any, problem: str, tmp_path: Path) -> None:
    draw(tmp_path, "ds/img/a.png")
    write_json(tmp_path / "meta.json", META)
    write_json(tmp_path / "ds/ann/a.png.json", annotation(given))
    with pytest.raises(DataError, match=problem):
        objects_in(tmp_path)


def box(label: Any = 0, **more: Any) -> dict[str, Any]:
    return {"id": 0, "type": "bbox", "attributes": {}, "group": 0, "label_id": label, "bbox": [10, 20, 30, 40], **more}


def polygon(*points: float, group: int = 0, label: int = 1) -> dict[str, Any]:
    return {"type": "polygon", "group": group, "label_id": label, "points": [*points]}


def datumaro(*annotations: Any) -> dict[str, Any]:
    labels = [{"name": name, "parent": "", "attributes": []} for name in ("cat", "dog")]
    item = {"id": "a", "annotations": [*annotations], "image": {"path": "a.png", "size": [80, 100]}}
    categories = {"label": {"label_groups": [], "labels": labels, "attributes": []}}
    return {"dm_format_version": "1.0", "infos": {}, "categories": categories, "items": [item]}


def test_datumaro(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw(tmp_path, "images/default/a.png")
    rows = [
        box(),
        polygon(1, 2, 11, 2, 6, 12),
        # Two parts of one object.
        polygon(20, 20, 30, 20, 30, 30, group=3),
        polygon(40, 20, 50, 20, 50, 40, group=3),
        # Two objects that someone grouped.
        box(group=4),
        box(group=4, bbox=[1, 1, 2, 2]),
        {"type": "ellipse", "label_id": 1, "points": [1, 2, 3, 4]},
        {"type": "rotated_bbox", "label_id": 1, "bbox": [30, 40, 20, 10, 90]},
        {"type": "mask", "label_id": 1, "rle": {"size": [80, 100], "counts": [85, 2, 78, 2, 7833]}},
        {"type": "points", "label_id": 1, "points": [1, 2]},
        box(None),
    ]
    file = write_json(tmp_path / "annotations/default.json", datumaro(*rows))
    with caplog.at_level(logging.WARNING):
        read = objects_in(tmp_path)
    assert read == objects_in(file)
    assert read["images/default/a.png"] == [
        ("cat", [10, 20, 40, 60]),
        ("dog", [1, 2, 11, 12]),
        ("dog", [20, 20, 50, 40]),
        ("cat", [10, 20, 40, 60]),
        ("cat", [1, 1, 3, 3]),
        ("dog", [1, 2, 3, 4]),
        ("dog", pytest.approx([25, 30, 35, 50])),
        ("dog", [1, 5, 3, 7]),
        ("ignore cat", [10, 20, 40, 60]),
        ("ignore dog", [10, 20, 40, 60]),
    ]
    assert "left out: 1 object without a class, ignored, 1 points" in caplog.text


def test_a_groups_box_is_its_polygons(tmp_path: Path) -> None:
    draw(tmp_path, "images/a.png")
    write_json(tmp_path / "annotations/default.json", datumaro(polygon(1, 2, 11, 2, 6, 12, group=2), box(1, group=2)))
    assert objects_in(tmp_path) == {"images/a.png": [("dog", [10, 20, 40, 60])]}
    masks = CocoDataset(tmp_path, load_masks=True)[0].masks
    assert masks is not None
    assert masks[0, 4, 6] == 1


def test_subsets_are_asked_for_one_by_one(tmp_path: Path) -> None:
    draw(tmp_path, "images/train/a.png", "images/val/a.png")
    for name in ("train", "val"):
        write_json(tmp_path / "annotations" / f"{name}.json", datumaro(box()))
    assert find_layout(tmp_path) is None
    assert [*objects_in(tmp_path / "annotations/val.json")] == ["images/val/a.png"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (box(2), "item 'a': annotation 1: label_id: expected 0 to 1, found 2"),
        (box(0.5), "label_id: expected a whole number"),
        (box(bbox=[1, 2, 3]), "annotation 1: expected 4 numbers, found 3"),
        (box(bbox="x"), "bbox: expected a list"),
        (polygon(1, 2, 3, 4), "points: expected x, y, … of three points or more"),
        ({"type": "mask", "label_id": 0, "rle": {"size": [80], "counts": []}}, r"rle: expected size \[height, width\]"),
        ({"type": "mask", "label_id": 0, "rle": {"size": [10**6, 10**6], "counts": []}}, "BOXWRIGHT_MAX_MASK_PIXELS"),
        (7, "annotation 1: expected an object"),
        ({**polygon(1, 2, 11, 2, 6, 12, group=2), "label_id": [1]}, "label_id: expected a number"),
    ],
)
def test_what_is_not_datumaros(row: Any, problem: str, tmp_path: Path) -> None:
    draw(tmp_path, "images/default/a.png")
    write_json(tmp_path / "annotations/default.json", datumaro(row))
    with pytest.raises(DataError, match=problem):
        objects_in(tmp_path)
