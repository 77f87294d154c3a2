"""Writing data, detections or likely errors of annotations for an annotation tool."""

from __future__ import annotations

import json
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from boxwright.base.errors import DataError, OutputError
from boxwright.base.files import make_folder, write_whole
from boxwright.data.coco import CocoDataset
from boxwright.data.dataset import Dataset
from boxwright.data.reading import NOT_XML, finite_number
from boxwright.types import Categories, Sample


class Tool(str, Enum):
    """An annotation tool."""

    CVAT = "cvat"
    LABEL_STUDIO = "label_studio"
    FIFTYONE = "fiftyone"


_ENDINGS = {Tool.CVAT: ".xml", Tool.LABEL_STUDIO: ".json", Tool.FIFTYONE: ".json"}
# The names of the parts of our labeling configuration of Label Studio.
_FROM, _TO, _DATA = "label", "image", "image"
_LOCAL_FILES = "/data/local-files/?d="


@dataclass(frozen=True)
class AnnotatedObject:
    """One object.

    Attributes:
        label: Of its class, 0-based.
        box: x_min, y_min, x_max, y_max in pixels.
        score: Of a detection; None for an annotation.
        reason: Why it is shown to an annotator; may be empty.
    """

    label: int
    box: tuple[float, float, float, float]
    score: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class AnnotatedImage:
    """One image.

    Attributes:
        name: Its file, relative to the images' folder.
    """

    name: str
    width: int
    height: int
    objects: tuple[AnnotatedObject, ...]


@dataclass(frozen=True)
class AnnotatedDataset:
    """Images with their classes."""

    categories: Categories
    images: tuple[AnnotatedImage, ...]

    @property
    def has_scores(self) -> bool:
        """Whether they are detections."""
        return any(annotation.score is not None for image in self.images for annotation in image.objects)


def write_for_tool(
    dataset: Dataset,
    path: str | Path,
    tool: Tool,
    *,
    prefix: str | None = None,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Path:
    """Write a data set's boxes as an annotation tool's file; images stay where they are.

    Of a COCO file whose annotations have scores, such as `coco.json` of `boxwright predict` or a report's
    `label_errors.json`, scores and reasons are written too, as far as the tool has a place for them.

    Args:
        path: The file.
        prefix: For Label Studio, what is before an image's name in its address; by default that of local files.
        progress: Wraps the indices, for a progress bar.

    Raises:
        DataError: If the data cannot be read, or the file's name ends otherwise than the tool's.
        OutputError: If it cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() != _ENDINGS[tool]:
        raise DataError(f"{path}: expected a name that ends in {_ENDINGS[tool]}")
    images = tuple(_image(dataset, index) for index in progress(range(len(dataset))))
    annotated = AnnotatedDataset(dataset.categories, images)
    make_folder(path.parent)
    if tool is Tool.LABEL_STUDIO:
        return write_label_studio(annotated, path, _LOCAL_FILES if prefix is None else prefix)
    if tool is Tool.FIFTYONE:
        return write_fiftyone(annotated, path)
    if annotated.has_scores:
        warnings.warn("scores are dropped: CVAT cannot represent them", stacklevel=2)
    return write_cvat(annotated, path)


def _image(dataset: Dataset, index: int) -> AnnotatedImage:
    sample, rows = _read(dataset, index)
    for kind, present in (("masks", sample.masks is not None), ("keypoints", sample.keypoints is not None)):
        if present:
            warnings.warn(f"{kind} are dropped: boxes are written", stacklevel=3)
    objects = []
    for number, (label, box) in enumerate(zip(sample.labels.tolist(), sample.boxes.tolist(), strict=True)):
        if sample.is_crowd[number]:
            warnings.warn("crowds are dropped: annotation tools have boxes of single objects", stacklevel=3)
            continue
        row = rows[number] if rows else {}
        score, reason = row.get("score"), row.get("reason", "")
        if score is not None:
            score = finite_number(score, f"{dataset.name}: annotation {str(row.get('id'))[:60]}: score")
        x_min, y_min, x_max, y_max = (round(side, 3) for side in box)
        objects.append(AnnotatedObject(label, (x_min, y_min, x_max, y_max), score, str(reason)))
    height, width = sample.image.shape[:2]
    return AnnotatedImage(sample.filename, width, height, tuple(objects))


def _read(dataset: Dataset, index: int) -> tuple[Sample, list[dict[str, Any]]]:
    """Return a sample, without its pixels if the data say how large it is, and its annotations in COCO's file."""
    if not isinstance(dataset, CocoDataset):
        return dataset[index], []
    image, rows = dataset.rows(index)
    known = image.get("width") and image.get("height")
    return dataset.truth(index) if known else dataset[index], rows


def write_cvat(annotated: AnnotatedDataset, path: str | Path) -> Path:
    """Write images as CVAT's XML, which a task with images of these names takes: “Upload annotations”.

    Raises:
        OutputError: If the file cannot be written, or XML cannot represent a name.
    """
    root = ET.Element("annotations")
    ET.SubElement(root, "version").text = "1.1"
    labels = ET.SubElement(ET.SubElement(ET.SubElement(root, "meta"), "task"), "labels")
    for category in annotated.categories:
        label = ET.SubElement(labels, "label")
        ET.SubElement(label, "name").text = _cvat_text(category.name)
        ET.SubElement(label, "attributes")
    for number, image in enumerate(annotated.images):
        size = {"width": str(image.width), "height": str(image.height)}
        element = ET.SubElement(root, "image", {"id": str(number), "name": _cvat_text(image.name), **size})
        for annotation in image.objects:
            sides = zip(("xtl", "ytl", "xbr", "ybr"), annotation.box, strict=True)
            name = annotated.categories.by_label(annotation.label).name
            shape = {"label": _cvat_text(name), "occluded": "0", "z_order": "0"}
            shape["source"] = "manual" if annotation.score is None else "auto"
            ET.SubElement(element, "box", shape | {side: f"{round(value, 3):.10g}" for side, value in sides})
    ET.indent(root)
    return write_whole(path, ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")


def _cvat_text(name: str) -> str:
    if bad := NOT_XML.search(name):
        raise OutputError(f"{name[:60]!r} cannot be written to CVAT's XML, which cannot represent {bad[0]!r}")
    return name


def write_fiftyone(annotated: AnnotatedDataset, path: str | Path) -> Path:
    """Write `labels.json`; images stay where they are.

    Raises:
        DataError: If two images have the same name without their endings, which is all that the format has.
    """
    labels: dict[str, list[dict[str, Any]]] = {}
    for image in annotated.images:
        key = image.name.removesuffix(Path(image.name).suffix)
        if key in labels:
            raise DataError(f"{image.name}: another image has this name with another ending; rename one of them")
        labels[key] = [_fiftyone_row(annotation, image.width, image.height) for annotation in image.objects]
    content = {"classes": [category.name for category in annotated.categories], "labels": labels}
    return write_whole(path, json.dumps(content, indent=1) + "\n")


def _fiftyone_row(annotation: AnnotatedObject, width: int, height: int) -> dict[str, Any]:
    x_min, y_min, x_max, y_max = annotation.box
    box = [x_min / width, y_min / height, (x_max - x_min) / width, (y_max - y_min) / height]
    row: dict[str, Any] = {"label": annotation.label, "bounding_box": box}
    row |= {} if annotation.score is None else {"confidence": annotation.score}
    return row | ({"attributes": {"reason": annotation.reason}} if annotation.reason else {})


def write_label_studio(annotated: AnnotatedDataset, path: str | Path, prefix: str) -> Path:
    """Write images as tasks to import, and beside them the labeling configuration that they fit.

    Detections become predictions of the tasks, with their scores; annotations become annotations.

    Args:
        path: The tasks' file; the configuration's ends in `.label_config.xml` in place of `.json`.
        prefix: What is before each image's name in its address.
    """
    path = Path(path)
    write_whole(path.with_suffix(".label_config.xml"), _labeling_config(annotated.categories))
    kind = "predictions" if annotated.has_scores else "annotations"
    # Label Studio takes the name of an object in a store as it is.
    quoted = prefix.startswith(("/", "http://", "https://"))
    tasks = [
        {
            "data": {_DATA: prefix + (quote(image.name) if quoted else image.name)},
            kind: [_label_studio_group(image, annotated.categories, kind)],
        }
        for image in annotated.images
    ]
    return write_whole(path, json.dumps(tasks, indent=1) + "\n")


def _labeling_config(categories: Categories) -> str:
    labels = "\n".join(f"    <Label value={quoteattr(category.name)}/>" for category in categories)
    return f"""<View>
  <Image name="{_TO}" value="${_DATA}"/>
  <RectangleLabels name="{_FROM}" toName="{_TO}">
{labels}
  </RectangleLabels>
</View>
"""


def _label_studio_group(image: AnnotatedImage, categories: Categories, kind: str) -> dict[str, Any]:
    results = [
        _label_studio_result(image, annotation, number, categories)
        for number, annotation in enumerate(image.objects, start=1)
    ]
    if kind == "annotations":
        return {"result": results}
    scores: Sequence[float] = [annotation.score for annotation in image.objects if annotation.score is not None]
    # A task has its surest object's score: tasks sorted by it begin with those that most likely need a look.
    return {"model_version": "boxwright", "score": max(scores, default=0.0), "result": results}


def _label_studio_result(
    image: AnnotatedImage, annotation: AnnotatedObject, number: int, categories: Categories
) -> dict[str, Any]:
    x_min, y_min, x_max, y_max = annotation.box
    width, height = 100 / image.width, 100 / image.height
    place = {"x": x_min * width, "y": y_min * height, "width": (x_max - x_min) * width}
    place |= {"height": (y_max - y_min) * height, "rotation": 0}
    row: dict[str, Any] = {
        "id": f"object-{number}",
        "type": "rectanglelabels",
        "from_name": _FROM,
        "to_name": _TO,
        "original_width": image.width,
        "original_height": image.height,
        "image_rotation": 0,
        "value": {**place, "rectanglelabels": [categories.by_label(annotation.label).name]},
    }
    row |= {} if annotation.score is None else {"score": annotation.score}
    return row | ({"meta": {"text": [annotation.reason]}} if annotation.reason else {})
