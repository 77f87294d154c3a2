"""CVAT's, Label Studio's and FiftyOne's files, read and written; places worked out by hand."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from boxwright.base.errors import DataError, OutputError
from boxwright.cli.main import app
from boxwright.data.coco import CocoDataset
from boxwright.data.open_dataset import open_dataset, open_recognized
from boxwright.data.recognize import is_coco_file, recognize
from boxwright.data.rotated import box_around_ellipse, box_around_rectangle, center_turned_about_corner
from boxwright.data.tool_files import (
    AnnotatedDataset,
    AnnotatedImage,
    AnnotatedObject,
    Tool,
    write_cvat,
    write_for_tool,
)
from boxwright.types import Categories, Category
from tests.cli.test_commands import run

CVAT = """<?xml version="1.0" encoding="utf-8"?>
<annotations>
  <version>1.1</version>
  <meta><task><id>4</id><labels>
    <label><name>person</name><attributes></attributes></label>
    <label><name>bus</name><attributes></attributes></label>
  </labels></task></meta>
  <image id="0" name="a.png" width="100" height="80">
    <box label="bus" occluded="0" source="manual" xtl="10.5" ytl="20" xbr="40" ybr="60.25" z_order="0"></box>
    <box label="bus" occluded="0" xtl="20" ytl="30" xbr="40" ybr="40" rotation="90" z_order="0"></box>
    <polygon label="person" points="1,2;11,2;6,12"></polygon>
    <mask label="person" rle="1, 2, 1, 2" left="4" top="5" width="3" height="2"></mask>
    <ellipse label="person" cx="50" cy="40" rx="10" ry="5" rotation="90"></ellipse>
    <points label="person" points="1,2"></points>
    <tag label="person"></tag>
  </image>
  <image id="1" name="b.png" width="100" height="80"></image>
</annotations>
"""


def result(kind: str, value: dict[str, Any], label: str = "bus", **more: Any) -> dict[str, Any]:
    row = {"type": kind, "original_width": 200, "original_height": 100, "value": {**value, kind: [label]}}
    return {**row, "from_name": "label", "to_name": "image", **more}


RECTANGLE = {"x": 10.0, "y": 20.0, "width": 30.0, "height": 40.0, "rotation": 0}
TASKS = [
    {
        "id": 7,
        "data": {"image": "/data/upload/1/0a1b2c3d-a.png"},
        "annotations": [
            {"result": [], "was_cancelled": True},
            {
                "result": [
                    result("rectanglelabels", RECTANGLE),
                    # Turned by a quarter about its corner at (100, 50): the width goes down, the height to the left.
                    result(
                        "rectanglelabels", {"x": 50.0, "y": 50.0, "width": 10.0, "height": 10.0, "rotation": 90}, "cat"
                    ),
                    result("polygonlabels", {"points": [[1.0, 2.0], [11.0, 2.0], [6.0, 12.0]]}, "cat"),
                    result("ellipselabels", {"x": 50.0, "y": 50.0, "radiusX": 5.0, "radiusY": 20.0}, "cat"),
                    {"type": "choices", "value": {"choices": ["day"]}},
                ]
            },
        ],
    },
    {"id": 8, "data": {"image": "/data/local-files/?d=b.png"}, "annotations": [{"result": []}]},
    {"id": 9, "data": {"image": "s3://bucket/photos/c.png"}, "annotations": [], "predictions": [{"result": []}]},
]
FIFTYONE = {
    "classes": ["person", "bus"],
    "labels": {
        "a": [{"label": 1, "bounding_box": [0.1, 0.25, 0.3, 0.5], "confidence": 0.5, "attributes": {"x": 1}}],
        "deep/b": [],
        "c": None,
    },
}


def pictures(folder: Path, size: tuple[int, int], *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (9, 99, 199)).save(folder / name)


@pytest.fixture
def cvat(tmp_path: Path) -> Path:
    pictures(tmp_path / "images", (100, 80), "a.png", "b.png")
    (tmp_path / "annotations.xml").write_text(CVAT)
    return tmp_path / "annotations.xml"


@pytest.fixture
def label_studio(tmp_path: Path) -> Path:
    pictures(tmp_path, (200, 100), "a.png", "b.png")
    (tmp_path / "export.json").write_text(json.dumps(TASKS))
    return tmp_path / "export.json"


@pytest.fixture
def fiftyone(tmp_path: Path) -> Path:
    pictures(tmp_path / "data", (100, 80), "a.png", "deep/b.png", "c.png")
    (tmp_path / "labels.json").write_text(json.dumps(FIFTYONE))
    return tmp_path / "labels.json"


def test_cvat(cvat: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        data = open_dataset(cvat, load_masks=False)
    assert "left out, as detectors have boxes: 1 points, 1 tag" in caplog.text
    assert [item.name for item in data.categories] == ["person", "bus"]
    first, second = data[0], data[1]
    # The second is turned about its center (30, 35); the ellipse stands upright.
    expected = [[10.5, 20, 40, 60.25], [25, 25, 35, 45], [1, 2, 11, 12], [4, 5, 7, 7], [45, 30, 55, 50]]
    np.testing.assert_allclose(first.boxes, expected, atol=1e-4)
    assert first.labels.tolist() == [1, 1, 0, 0, 0]
    assert len(second.boxes) == 0
    assert (first.filename, first.image.shape) == ("a.png", (80, 100, 3))


def test_masks_of_cvat(cvat: Path) -> None:
    boxes = [line for line in CVAT.splitlines() if "<box" not in line and "<ellipse" not in line]
    cvat.write_text("\n".join(boxes))
    masks = CocoDataset(cvat, load_masks=True)[0].masks
    assert masks is not None
    assert np.argwhere(masks[1]).tolist() == [[5, 5], [5, 6], [6, 5], [6, 6]], "runs of 1, 2, 1, 2 in rows of 3"
    assert masks[0].sum() == pytest.approx(50, abs=10), "a triangle of 10 by 10"


def test_label_studio(label_studio: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        data = open_dataset(label_studio)
    assert "left out: 1 choices, 1 task without annotations" in caplog.text
    assert [item.name for item in data.categories] == ["bus", "cat"]
    assert len(data) == 2
    expected = [[20, 20, 80, 60], [90, 50, 100, 70], [2, 2, 22, 12], [90, 30, 110, 70]]
    np.testing.assert_allclose(data[0].boxes, expected, atol=1e-4)
    assert data[0].labels.tolist() == [0, 1, 1, 1]
    assert (data[0].filename, data[1].filename, len(data[1].boxes)) == ("a.png", "b.png", 0)


def test_the_ground_truth_of_label_studio_counts(label_studio: Path) -> None:
    other = {"result": [result("rectanglelabels", RECTANGLE, "dog")], "ground_truth": True}
    label_studio.write_text(json.dumps([{**TASKS[0], "annotations": [other, *TASKS[0]["annotations"]]}]))
    assert [item.name for item in open_dataset(label_studio).categories] == ["dog"]


def test_fiftyone(fiftyone: Path) -> None:
    data = open_dataset(fiftyone)
    assert [item.name for item in data.categories] == ["person", "bus"]
    assert [data[index].filename for index in range(len(data))] == ["data/a.png", "data/deep/b.png"]
    np.testing.assert_allclose(data[0].boxes, [[10, 20, 40, 60]], atol=1e-4)
    assert data[0].labels.tolist() == [1]
    assert len(open_dataset(fiftyone, image_folder=fiftyone.parent / "data")[1].boxes) == 0
    # Without a list of classes, labels are names.
    fiftyone.write_text(json.dumps({"classes": None, "labels": {"a": [{**FIFTYONE["labels"]["a"][0], "label": "x"}]}}))
    assert [item.name for item in open_dataset(fiftyone).categories] == ["x"]


@pytest.mark.parametrize("kind", ["cvat", "label_studio", "fiftyone"])
def test_folders_are_recognized(kind: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(kind)
    assert is_coco_file(path)
    for given in (path, path.parent):
        data, held_out = open_recognized(recognize(given))
        assert held_out is None
        assert data[0].image.ndim == 3
        assert len(data[0].boxes) > 0


@pytest.mark.parametrize("kind", ["cvat", "fiftyone"])
def test_inspect_takes_file_and_folder(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path: Path = request.getfixturevalue(kind)
    for given in (path, path.parent):
        assert "2 images" in run("inspect", given, "--sheet", tmp_path / "sheet.png")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("<annotations>", "<annotation>", "not XML"),
        ('xtl="10.5"', 'xtl="left"', r"image 'a\.png': <box> 1: xtl: expected a number, found 'left'"),
        ('xtl="10.5"', 'xtl="nan"', "xtl: expected a number"),
        ('label="bus" occluded="0" source', 'label="car" source', "label 'car' is not among the labels in <meta>"),
        ('width="100"', 'width="-1"', "width: expected a whole number"),
        ('width="100"', 'width="1000000000"', "BOXWRIGHT_MAX_IMAGE_PIXELS"),
        ("1,2;11,2;6,12", "1,2;11,2", "points: expected x,y;x,y;… of at least three points"),
        ("1,2;11,2;6,12", "1,2;11,2;inf,12", "points: expected"),
        ("1, 2, 1, 2", "1, 2, 1, 3", "rle: expected run lengths that fill 3×2"),
        ("1, 2, 1, 2", "1, 2, 4, -1", "rle: expected run lengths"),
        ("1, 2, 1, 2", "x", "rle: expected run lengths"),
        ('left="4"', 'left="98"', "3×2 at 98, 5 is not inside the image of 100×80"),
        ("</annotations>", "<track/></annotations>", "tracks of a video; export it again as “CVAT for images 1.1”"),
        ("annotations>", "objects>", "expected CVAT's <annotations>, found <objects>"),
        ('name="a.png"', "", "file_name: the picture has no name"),
    ],
)
def test_what_is_not_cvats(old: str, new: str, problem: str, cvat: Path) -> None:
    text = CVAT.replace(old, new)
    assert text != CVAT
    cvat.write_text(text)
    with pytest.raises(DataError, match=problem):
        open_dataset(cvat)[0]


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        ({"annotations": None}, "task 7: no list of annotations"),
        ({"annotations": [{}]}, "expected objects with a list of results"),
        ({"annotations": []}, "none of 1 tasks is annotated"),
        ({"annotations": [{"result": []}]}, "no box, polygon or ellipse with a label in 1 annotated tasks"),
        ({"annotations": [{"result": [3]}]}, "result 1: expected an object, found 3"),
        ({"data": {"text": "words"}}, "data: expected the address of an image"),
        ({"data": None}, "data: expected the address of an image"),
        (result("rectanglelabels", RECTANGLE, original_width=None), "original_width: expected"),
        (result("rectanglelabels", RECTANGLE, original_width=1.5), "original_width: expected a whole number"),
        (result("rectanglelabels", {**RECTANGLE, "x": "far"}), "result 1: x: expected"),
        (result("rectanglelabels", {**RECTANGLE, "x": math.nan}), "x: expected"),
        (result("rectanglelabels", {**RECTANGLE, "rotation": "a bit"}), "rotation: expected"),
        (result("polygonlabels", {"points": [[1, 2], [3, 4]]}), "points: expected"),
        (result("polygonlabels", {"points": [[1, 2], [3, 4], 5]}), "points: expected"),
        ({**result("rectanglelabels", RECTANGLE), "value": {"rectanglelabels": ["a", "b"]}}, "expected one label"),
        ({**result("rectanglelabels", RECTANGLE), "value": None}, "expected one label"),
        ({"type": "brushlabels"}, "a mask drawn with a brush"),
    ],
)
def test_what_is_not_label_studios(task: dict[str, Any], problem: str, label_studio: Path) -> None:
    change = {"annotations": [{"result": [task]}]} if "type" in task else task
    label_studio.write_text(json.dumps([{**TASKS[0], **change}]))
    with pytest.raises(DataError, match=problem):
        open_dataset(label_studio)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"classes": "x", "labels": {}}, "classes: expected a list of names"),
        ({"classes": None, "labels": {"a": 5}}, "'a': expected a list of objects, found 5"),
        ({"classes": ["x"], "labels": {"z": []}}, "'z': no such image in"),
        (
            {"classes": ["x"], "labels": {"a": [{"label": 1, "bounding_box": [0, 0, 1, 1]}]}},
            "number from 0 to 0, found",
        ),
        (
            {"classes": ["x"], "labels": {"a": [{"label": 0, "bounding_box": [0, 0, 1]}]}},
            "expected .x, y, width, height",
        ),
        (
            {"classes": ["x"], "labels": {"a": [{"label": 0, "bounding_box": [0, 0, 1, None]}]}},
            "object 1: bounding_box",
        ),
        ({"classes": ["x"], "labels": {}}, "no images"),
    ],
)
def test_what_is_not_fiftyones(content: dict[str, Any], problem: str, fiftyone: Path) -> None:
    fiftyone.write_text(json.dumps(content))
    with pytest.raises(DataError, match=problem):
        open_dataset(fiftyone)


def test_images_of_fiftyone(fiftyone: Path) -> None:
    pictures(fiftyone.parent / "data", (9, 9), "a.jpg")
    with pytest.raises(DataError, match=r"'a' may be a.jpg or a.png; rename one of them"):
        open_dataset(fiftyone)
    (fiftyone.parent / "data" / "a.jpg").unlink()
    (fiftyone.parent / "data" / "a.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="a.png: not an image of a known format"):
        open_dataset(fiftyone)
    with pytest.raises(DataError, match="no folder .*nowhere of images"):
        open_dataset(fiftyone, image_folder=fiftyone.parent / "nowhere")


def suspects(folder: Path) -> Path:
    """A report's list of likely errors, whose images are elsewhere."""
    content = {
        "images": [{"id": 3, "file_name": "deep/a b.png", "width": 200, "height": 100}],
        "categories": [{"id": 5, "name": "bus"}, {"id": 9, "name": "cat & <dog>"}],
        "annotations": [
            {"id": 1, "image_id": 3, "category_id": 9, "bbox": [20, 20, 60, 40], "score": 0.75, "reason": "no <box>"}
        ],
    }
    (folder / "label_errors.json").write_text(json.dumps(content))
    return folder / "label_errors.json"


def test_likely_errors_are_tasks_of_label_studio(tmp_path: Path) -> None:
    run("convert", suspects(tmp_path), tmp_path / "out" / "tasks.json", "--to", "label_studio")
    (task,) = json.loads((tmp_path / "out" / "tasks.json").read_text())
    assert task["data"] == {"image": "/data/local-files/?d=deep/a%20b.png"}
    (prediction,) = task["predictions"]
    assert prediction["score"] == 0.75
    (found,) = prediction["result"]
    assert found["value"] == {**RECTANGLE, "rectanglelabels": ["cat & <dog>"]}
    assert (found["score"], found["meta"]) == (0.75, {"text": ["no <box>"]})
    config = (tmp_path / "out" / "tasks.label_config.xml").read_text()
    assert '<Label value="cat &amp; &lt;dog&gt;"/>' in config
    prefix = ("--image_prefix", "https://images.example/")
    run("convert", suspects(tmp_path), tmp_path / "out" / "tasks.json", "--to", "label_studio", *prefix)
    (task,) = json.loads((tmp_path / "out" / "tasks.json").read_text())
    assert task["data"] == {"image": "https://images.example/deep/a%20b.png"}
    write_for_tool(open_dataset(suspects(tmp_path)), tmp_path / "s3.json", Tool.LABEL_STUDIO, prefix="s3://bucket/")
    assert json.loads((tmp_path / "s3.json").read_text())[0]["data"] == {"image": "s3://bucket/deep/a b.png"}


def test_likely_errors_for_fiftyone_and_cvat(tmp_path: Path) -> None:
    run("convert", suspects(tmp_path), tmp_path / "labels.json", "--to", "fiftyone")
    content = json.loads((tmp_path / "labels.json").read_text())
    assert content["classes"] == ["bus", "cat & <dog>"]
    row = {"label": 1, "bounding_box": [0.1, 0.2, 0.3, 0.4], "confidence": 0.75, "attributes": {"reason": "no <box>"}}
    assert content["labels"] == {"deep/a b": [row]}
    with pytest.warns(UserWarning, match="scores are dropped: CVAT cannot represent them"):
        write_for_tool(open_dataset(suspects(tmp_path)), tmp_path / "a.xml", Tool.CVAT)
    truth = CocoDataset(tmp_path / "a.xml").truth(0)
    assert (truth.filename, truth.labels.tolist()) == ("deep/a b.png", [1])
    np.testing.assert_allclose(truth.boxes, [[20, 20, 80, 60]])


@pytest.mark.parametrize("tool", list(Tool))
def test_data_come_back_as_they_went(tool: Tool, label_studio: Path, tmp_path: Path) -> None:
    data = open_dataset(label_studio)
    path = tmp_path / ("out.xml" if tool is Tool.CVAT else "out.json")
    write_for_tool(data, path, tool)
    back = open_dataset(path, image_folder=tmp_path)
    assert [item.name for item in back.categories] == [item.name for item in data.categories]
    assert len(back) == len(data)
    for index in range(len(data)):
        np.testing.assert_allclose(back[index].boxes, data[index].boxes, atol=2e-3)
        assert back[index].labels.tolist() == data[index].labels.tolist()
        assert back[index].filename == data[index].filename


def test_what_cannot_be_written(tmp_path: Path) -> None:
    data = open_dataset(suspects(tmp_path))
    for tool, name, ending in ((Tool.CVAT, "a.json", ".xml"), (Tool.FIFTYONE, "a", ".json")):
        with pytest.raises(DataError, match=f"expected a name that ends in {ending}"):
            write_for_tool(data, tmp_path / name, tool)
    words = ["convert", str(suspects(tmp_path)), str(tmp_path / "a.json"), "--image_prefix", "x"]
    with pytest.raises(DataError, match="--image_prefix: an image's address in Label Studio; add --to label_studio"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    bad = Categories((Category(0, 1, "a\x01"),))
    with pytest.raises(OutputError, match="CVAT's XML, which cannot represent"):
        write_cvat(AnnotatedDataset(bad, ()), tmp_path / "bad.xml")
    assert not (tmp_path / "bad.xml").exists()
    one = json.loads(suspects(tmp_path).read_text())
    one["annotations"][0]["score"] = "high"
    (tmp_path / "label_errors.json").write_text(json.dumps(one))
    with pytest.raises(DataError, match="annotation 1: score: expected"):
        write_for_tool(open_dataset(tmp_path / "label_errors.json"), tmp_path / "b.json", Tool.FIFTYONE)
    assert not (tmp_path / "b.json").exists()


def test_boxes_around_turned_shapes() -> None:
    assert box_around_rectangle((0, 0), (4, 2), 0) == (-2, -1, 2, 1)
    side = math.sqrt(2)
    assert box_around_rectangle((0, 0), (2, 2), 45) == pytest.approx((-side, -side, side, side))
    assert box_around_ellipse((1, 1), (3, 3), 33) == pytest.approx((-2, -2, 4, 4)), "a circle"
    assert center_turned_about_corner((1, 1), (4, 2), 90) == pytest.approx((0, 3))


def test_images_that_differ_in_their_ending_alone(tmp_path: Path) -> None:
    from boxwright.data.tool_files import write_fiftyone

    one = AnnotatedObject(0, (0, 0, 1, 1))
    images = tuple(AnnotatedImage(name, 9, 9, (one,)) for name in ("a.png", "a.jpg"))
    with pytest.raises(DataError, match="a.jpg: another image has this name with another ending"):
        write_fiftyone(AnnotatedDataset(Categories((Category(0, 1, "x"),)), images), tmp_path / "labels.json")
