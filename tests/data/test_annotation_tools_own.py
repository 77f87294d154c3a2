"""Files of annotation tools, held to what the tools' own libraries read and write.

Their libraries ask for other releases of NumPy and OpenCV than ours, so that each has an environment of its own, which
a variable names.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boxwright.data.open_dataset import open_dataset
from boxwright.data.tool_files import Tool, write_for_tool
from tests.data.test_annotation_tools import TASKS, pictures

LABEL_STUDIO, FIFTYONE = "BOXWRIGHT_LABEL_STUDIO_PYTHON", "BOXWRIGHT_FIFTYONE_PYTHON"
DATUMARO = "BOXWRIGHT_DATUMARO_PYTHON"
needs_label_studio = pytest.mark.skipif(
    LABEL_STUDIO not in os.environ, reason=f"{LABEL_STUDIO} names no interpreter with label-studio-sdk"
)
needs_fiftyone = pytest.mark.skipif(
    FIFTYONE not in os.environ, reason=f"{FIFTYONE} names no interpreter with fiftyone, which reads CVAT's files, too"
)
needs_datumaro = pytest.mark.skipif(
    DATUMARO not in os.environ, reason=f"{DATUMARO} names no interpreter with datumaro, CVAT's library of formats"
)
# Detections of two images, of 200 by 100.
COCO: dict[str, Any] = {
    "images": [{"id": n, "file_name": f"{n}.png", "width": 200, "height": 100} for n in (1, 2)],
    "categories": [{"id": 1, "name": "bus"}, {"id": 2, "name": "cat & <dog>"}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 2, "bbox": [20, 20, 60, 40], "score": 0.75, "reason": "odd"},
        {"id": 2, "image_id": 1, "category_id": 1, "bbox": [1.5, 2.25, 3, 4.125], "score": 0.5},
        {"id": 3, "image_id": 2, "category_id": 1, "bbox": [0, 0, 200, 100], "score": 0.25},
    ],
}


def asked(variable: str, script: str, folder: Path, *arguments: object) -> Any:
    """Return what a script prints as JSON at its end, run by the interpreter that a variable names."""
    words = [os.environ[variable], "-c", script, *map(str, arguments)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "FIFTYONE_DO_NOT_TRACK": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def found(tmp_path: Path) -> Path:
    pictures(tmp_path / "data", (200, 100), "1.png", "2.png")
    (tmp_path / "coco.json").write_text(json.dumps(COCO))
    return tmp_path / "coco.json"


@pytest.mark.slow
@needs_label_studio
def test_label_studio_takes_our_tasks(found: Path, tmp_path: Path) -> None:
    write_for_tool(open_dataset(found), tmp_path / "tasks.json", Tool.LABEL_STUDIO)
    script = """
import json, sys
from label_studio_sdk.label_interface import LabelInterface
interface = LabelInterface(open(sys.argv[1] + "/tasks.label_config.xml").read())
interface.validate()
tasks = json.load(open(sys.argv[1] + "/tasks.json"))
for task in tasks:
    predictions = task.pop("predictions")
    interface.validate_task(task)
    for prediction in predictions:
        problems = interface.validate_prediction(prediction, return_errors=True)
        assert not problems, problems
print(json.dumps([len(tasks), sorted(interface.get_control("label").labels)]))
"""
    assert asked(LABEL_STUDIO, script, tmp_path, tmp_path) == [2, ["bus", "cat & <dog>"]]


@pytest.mark.slow
@needs_label_studio
def test_we_read_label_studios_export_as_its_own_converter_does(tmp_path: Path) -> None:
    # Its converter has no ellipses, and turns boxes in percent, which is right for square images alone.
    pictures(tmp_path, (200, 200), "a.png")
    results = TASKS[0]["annotations"][1]["result"]
    kept = [one for one in results if one["type"] in ("polygonlabels", "rectanglelabels")]
    kept = [{**one, "id": str(number), "original_height": 200} for number, one in enumerate(kept)]
    task = {**TASKS[0], "annotations": [{"id": 1, "result": kept, "completed_by": 1}]}
    (tmp_path / "export.json").write_text(json.dumps([task]))
    script = """
import json, sys
from label_studio_sdk.converter import Converter
config = '''<View><Image name="image" value="$image"/><RectangleLabels name="label" toName="image">
<Label value="bus"/><Label value="cat"/></RectangleLabels>
<PolygonLabels name="polygon" toName="image"><Label value="bus"/><Label value="cat"/></PolygonLabels></View>'''
converter = Converter(config, sys.argv[1], download_resources=False)
converter.convert_to_coco(sys.argv[1] + "/export.json", sys.argv[1] + "/out", output_image_dir=sys.argv[1] + "/out/images", is_dir=False)
print(json.dumps(json.load(open(sys.argv[1] + "/out/result.json"))))
"""
    theirs = asked(LABEL_STUDIO, script, tmp_path, tmp_path)
    ours = open_dataset(tmp_path / "export.json")
    names = {row["id"]: row["name"] for row in theirs["categories"]}
    boxes = np.array([row["bbox"] for row in theirs["annotations"]], np.float64)
    assert [names[row["category_id"]] for row in theirs["annotations"]] == ["bus", "cat", "cat"]
    assert [ours.categories.by_label(label).name for label in ours[0].labels.tolist()] == ["bus", "cat", "cat"]
    boxes[:, 2:] += boxes[:, :2]
    np.testing.assert_allclose(ours[0].boxes, boxes, atol=1e-3)


@pytest.mark.slow
@needs_fiftyone
def test_fiftyone_reads_our_labels_and_we_its(found: Path, tmp_path: Path) -> None:
    write_for_tool(open_dataset(found, image_folder=tmp_path / "data"), tmp_path / "labels.json", Tool.FIFTYONE)
    script = """
import json, sys
import fiftyone as fo
import fiftyone.utils.data as data
folder = sys.argv[1]
rows = []
reader = data.FiftyOneImageDetectionDatasetImporter(data_path=folder + "/data", labels_path=folder + "/labels.json")
writer = data.FiftyOneImageDetectionDatasetExporter(export_dir=folder + "/theirs", export_media=True)
with reader, writer:
    for path, metadata, found in reader:
        for one in found.detections:
            rows.append([path.rpartition("/")[2], one.label, list(one.bounding_box), one.confidence, getattr(one, "reason", "")])
        writer.export_sample(path, found)
print(json.dumps(rows))
"""
    rows = asked(FIFTYONE, script, tmp_path, tmp_path)
    assert sorted(rows) == [
        ["1.png", "bus", [0.0075, 0.0225, 0.015, 0.04125], 0.5, ""],
        ["1.png", "cat & <dog>", [0.1, 0.2, 0.3, 0.4], 0.75, "odd"],
        ["2.png", "bus", [0.0, 0.0, 1.0, 1.0], 0.25, ""],
    ]
    theirs, ours = (
        open_dataset(tmp_path / "theirs" / "labels.json"),
        open_dataset(found, image_folder=tmp_path / "data"),
    )
    same(theirs, ours)


@pytest.mark.slow
@needs_fiftyone
def test_fiftyones_reader_and_writer_of_cvat(found: Path, tmp_path: Path) -> None:
    # It writes names without escaping them.
    found.write_text(found.read_text().replace(" & <dog>", ""))
    ours = open_dataset(found, image_folder=tmp_path / "data")
    with pytest.warns(UserWarning, match="scores are dropped"):
        write_for_tool(ours, tmp_path / "annotations.xml", Tool.CVAT)
    script = """
import json, sys
import fiftyone.utils.cvat as cvat
folder = sys.argv[1]
rows = []
reader = cvat.CVATImageDatasetImporter(data_path=folder + "/data", labels_path=folder + "/annotations.xml")
writer = cvat.CVATImageDatasetExporter(export_dir=folder + "/theirs", export_media=True)
with reader, writer:
    for path, metadata, found in reader:
        for one in found["detections"].detections:
            rows.append([path.rpartition("/")[2], one.label, list(one.bounding_box)])
        writer.export_sample(path, found, metadata)
print(json.dumps(rows))
"""
    rows = asked(FIFTYONE, script, tmp_path, tmp_path)
    assert [row[:2] for row in sorted(rows)] == [["1.png", "bus"], ["1.png", "cat"], ["2.png", "bus"]]
    expected = [[0.0075, 0.0225, 0.015, 0.04125], [0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1]]
    # It reads and writes whole pixels.
    np.testing.assert_allclose([row[2] for row in sorted(rows)], expected, atol=0.0051)
    same(open_dataset(tmp_path / "theirs" / "labels.xml", image_folder=tmp_path / "theirs" / "data"), ours, atol=0.51)


@pytest.mark.slow
@needs_datumaro
def test_cvats_own_library_reads_our_file(found: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="scores are dropped"):
        write_for_tool(open_dataset(found, image_folder=tmp_path / "data"), tmp_path / "annotations.xml", Tool.CVAT)
    (tmp_path / "data").rename(tmp_path / "images")
    script = """
import json, sys
import datumaro
data = datumaro.Dataset.import_from(sys.argv[1], "cvat")
names = data.categories()[datumaro.AnnotationType.label]
rows = [[item.id, names[one.label].name, list(one.get_bbox())] for item in data for one in item.annotations]
print(json.dumps(sorted(rows)))
"""
    rows = asked(DATUMARO, script, tmp_path, tmp_path)
    assert [row[:2] for row in rows] == [["1", "bus"], ["1", "cat & <dog>"], ["2", "bus"]]
    # It rounds to hundredths.
    np.testing.assert_allclose(
        [row[2] for row in rows], [[1.5, 2.25, 3, 4.125], [20, 20, 60, 40], [0, 0, 200, 100]], atol=0.01
    )


def same(one: Any, other: Any, atol: float = 1e-3) -> None:
    """Compare the boxes of both, by the names of images and classes."""

    def rows(data: Any) -> list[tuple[str, str, tuple[float, ...]]]:
        samples = [data[index] for index in range(len(data))]
        return sorted(
            (Path(sample.filename).name, data.categories.by_label(label).name, tuple(box))
            for sample in samples
            for box, label in zip(sample.boxes.tolist(), sample.labels.tolist(), strict=True)
        )

    first, second = rows(one), rows(other)
    assert [row[:2] for row in first] == [row[:2] for row in second]
    np.testing.assert_allclose([row[2] for row in first], [row[2] for row in second], atol=atol)
