"""CVAT's XML, "CVAT for images 1.1": boxes, polygons, ellipses and masks of each image, and the classes.

https://docs.cvat.ai/docs/manual/advanced/xml_format/
"""

from __future__ import annotations

import logging
import math
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.base.errors import DataError
from boxwright.base.files import shown
from boxwright.base.limits import IMAGE_PIXELS
from boxwright.base.text import to_number
from boxwright.data.reading import read_xml
from boxwright.data.rotated import Box, box_around_ellipse, box_around_points, box_around_rectangle
from boxwright.nn.ops.pasted_masks import encode_window

# The file that CVAT exports, beside a folder of images.
CVAT_ANNOTATIONS = "annotations.xml"

_LOG = logging.getLogger("boxwright")
_SHAPES = ("box", "polygon", "ellipse", "mask")
_OTHERS = ("polyline", "points", "skeleton", "cuboid", "tag")
_ROOT = re.compile(r"\s*(<\?xml[^>]*\?>)?\s*(<!--.*?-->\s*)*<annotations[\s>]", re.DOTALL)


def is_cvat_text(text: str) -> bool:
    """Return whether a file is CVAT's, by its beginning."""
    return _ROOT.match(text.lstrip("\ufeff")) is not None


def read_cvat(path: Path) -> dict[str, Any]:
    """Return CVAT's annotations as the content of a COCO file.

    Rotated boxes and ellipses become the upright boxes around them; polylines, points, skeletons, cuboids and tags are
    left out, which a line of the log says.

    Raises:
        DataError: If it is not such a file, or has tracks.
    """
    root = read_xml(path)
    elements = root.findall("image")
    if root.tag != "annotations":
        raise DataError(f"{shown(path)}: expected CVAT's <annotations>, found <{root.tag[:60]}>")
    if root.find("track") is not None:
        raise DataError(f"{shown(path)}: tracks of a video; export it again as “CVAT for images 1.1”")
    names = [name for name in (label.text for label in root.iterfind("./meta//labels/label/name")) if name]
    used = {shape.get("label", "") for image in elements for shape in image if shape.tag in _SHAPES}
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names or sorted(used)), start=1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, element in enumerate(elements, start=1):
        where = f"{shown(path)}: image {element.get('name', '')[:100]!r}"
        width, height = (_whole(element, side, where) for side in ("width", "height"))
        if problem := IMAGE_PIXELS.exceeded(width * height):
            raise DataError(f"{where}: {problem}")
        images.append({"id": number, "file_name": element.get("name", ""), "width": width, "height": height})
        for position, shape in enumerate(child for child in element if child.tag in _SHAPES):
            place, name = f"{where}: <{shape.tag}> {position + 1}", shape.get("label", "")
            if name not in numbers:
                raise DataError(f"{place}: label {name[:60]!r} is not among the labels in <meta>")
            row = _row(shape, (height, width), place)
            annotations.append({"id": len(annotations) + 1, "image_id": number, "category_id": numbers[name], **row})
    _tell_what_is_left_out(elements, path)
    categories = [{"id": number, "name": name} for name, number in numbers.items()]
    return {"images": images, "annotations": annotations, "categories": categories}


def _tell_what_is_left_out(images: list[ET.Element], path: Path) -> None:
    others = Counter(shape.tag for image in images for shape in image if shape.tag in _OTHERS)
    if others:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
        _LOG.warning("%s: left out, as detectors have boxes: %s", path, kinds)


def _row(shape: ET.Element, size: tuple[int, int], where: str) -> dict[str, Any]:
    """Return box and outline of a shape as fields of a COCO annotation."""
    row: dict[str, Any] = {"iscrowd": 0}
    if shape.tag == "polygon":
        points = _points(shape, where)
        row["segmentation"] = [points]
        box = box_around_points(points)
    elif shape.tag == "mask":
        box, row["segmentation"] = _mask(shape, size, where)
    elif shape.tag == "ellipse":
        cx, cy, rx, ry = (_number(shape, name, where) for name in ("cx", "cy", "rx", "ry"))
        box = box_around_ellipse((cx, cy), (rx, ry), _number(shape, "rotation", where, default="0"))
    else:
        box = _box(shape, where)
    return {**row, "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]]}


def _box(shape: ET.Element, where: str) -> Box:
    x_min, y_min, x_max, y_max = (_number(shape, side, where) for side in ("xtl", "ytl", "xbr", "ybr"))
    degrees = _number(shape, "rotation", where, default="0")
    if not degrees:
        return x_min, y_min, x_max, y_max
    return box_around_rectangle(((x_min + x_max) / 2, (y_min + y_max) / 2), (x_max - x_min, y_max - y_min), degrees)


def _points(shape: ET.Element, where: str) -> list[float]:
    text = shape.get("points", "")
    try:
        points = [to_number(value) for pair in text.split(";") for value in pair.split(",", 1)]
    except ValueError:
        points = []
    if len(points) < 6 or len(points) % 2 or not all(map(math.isfinite, points)):
        raise DataError(f"{where}: points: expected x,y;x,y;… of at least three points, found {text[:60]!r}")
    return points


def _mask(shape: ET.Element, size: tuple[int, int], where: str) -> tuple[Box, Any]:
    """Return the box and COCO's run lengths of a mask, which has those of a window, row by row, zeros first."""
    left, top, width, height = (_whole(shape, name, where) for name in ("left", "top", "width", "height"))
    text = shape.get("rle", "")
    try:
        runs = [int(run) for run in text.split(",")]
    except ValueError:
        runs = [-1]
    if left < 0 or top < 0 or left + width > size[1] or top + height > size[0]:
        raise DataError(f"{where}: {width}×{height} at {left}, {top} is not inside the image of {size[1]}×{size[0]}")
    if min(runs) < 0 or sum(runs) != width * height:
        raise DataError(f"{where}: rle: expected run lengths that fill {width}×{height}, found {text[:60]!r}")
    window = np.repeat((np.arange(len(runs)) % 2).astype(np.uint8), runs).reshape(height, width)
    return (left, top, left + width, top + height), encode_window(window, top, left, size)


def _number(element: ET.Element, name: str, where: str, default: str = "") -> float:
    text = element.get(name, default)
    try:
        value = to_number(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: {name}: expected a number, found {text[:60]!r}")
    return value


def _whole(element: ET.Element, name: str, where: str) -> int:
    value = _number(element, name, where)
    if value != int(value) or value < 0:
        raise DataError(f"{where}: {name}: expected a whole number, found {element.get(name, '')[:60]!r}")
    return int(value)
