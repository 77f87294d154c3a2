"""One annotation of Pascal VOC's kind, as labelImg, CVAT, Roboflow, roLabelImg and LabelMe write it."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from boxwright.base.errors import DataError
from boxwright.base.files import shown
from boxwright.data.notices import Notices
from boxwright.data.rotated import Box, box_around_points, box_around_rectangle
from boxwright.data.xml_files import read_xml

PRESERVED = "{http://www.w3.org/XML/1998/namespace}space"
_YES, _NO = frozenset({"true", "yes", "y"}), frozenset({"", "false", "no", "n", "none", "unspecified"})
_COORDINATE = re.compile(r"([xy])\d*")
_LONGEST = 60


@dataclass(frozen=True)
class VocObject:
    """A box as annotated, with its class."""

    name: str
    box: Box
    difficult: bool


@dataclass(frozen=True)
class VocAnnotation:
    """What one XML file says.

    Attributes:
        filename: Its picture's, as written; may be empty.
        declared: The (height, width) that it states, if any.
        objects: Its objects, one for each box.
    """

    filename: str
    declared: tuple[int, int] | None
    objects: tuple[VocObject, ...]


def read_voc_annotation(path: Path, notices: Notices) -> VocAnnotation | None:
    """Return an annotation; None for XML of another kind.

    Args:
        notices: Receives what was assumed, and the boxes that are left out.

    Raises:
        DataError: If it is not XML, or an object has no name or no box.
    """
    root = read_xml(path, notices.assumed)
    size = root.find("size")
    filename = (root.findtext("filename") or "").strip()
    elements = list(root.iter("object"))
    if root.tag != "annotation" and not filename and not elements:
        return None
    declared = None
    if size is not None and size.findtext("width") and size.findtext("height"):
        declared = (int(_number(size, "height", path)), int(_number(size, "width", path)))
    objects = tuple(item for element in elements for item in _objects(element, path, notices))
    return VocAnnotation(filename, declared, objects)


def _objects(element: ET.Element, path: Path, notices: Notices) -> Iterator[VocObject]:
    """Yield an element's objects, which are several where it has several boxes."""
    tag = element.find("name")
    name = "" if tag is None else tag.text or ""
    if tag is None or tag.get(PRESERVED) != "preserve":
        name = name.strip()
    if not name:
        raise DataError(f"{shown(path)}: an object without <name>")
    if (element.findtext("deleted") or "").strip() == "1":
        # LabelMe keeps what its users removed.
        notices.boxes.add("marked as deleted", path.name)
        return
    boxes = _boxes(element, path, notices)
    if not boxes:
        raise DataError(f"{shown(path)}: an object without <bndbox>")
    if len(boxes) > 1:
        notices.assumed.add("further boxes of one <object>, read as objects of its class", path.name, len(boxes) - 1)
    difficult = _is_difficult((element.findtext("difficult") or "").strip(), path, notices)
    yield from (VocObject(name, box, difficult) for box in boxes)


def _boxes(element: ET.Element, path: Path, notices: Notices) -> list[Box]:
    """Return an object's boxes; those around its rotated boxes or polygons where it has no others."""
    # Children only: the boxes of a <part> are not objects.
    if boxes := [_corners(box, path) for box in element.findall("bndbox")]:
        return boxes
    if boxes := [_around_rotated(box, path) for box in element.findall("robndbox")]:
        notices.assumed.add("rotated boxes, read as the upright boxes around them", path.name, len(boxes))
        return boxes
    boxes = [_around_polygon(outline, path) for outline in element.findall("polygon")]
    notices.assumed.add("polygons without <bndbox>, read as the boxes around them", path.name, len(boxes))
    return boxes


def _corners(box: ET.Element, path: Path) -> Box:
    x_min, y_min, x_max, y_max = (_number(box, side, path) for side in ("xmin", "ymin", "xmax", "ymax"))
    return x_min, y_min, x_max, y_max


def _around_rotated(box: ET.Element, path: Path) -> Box:
    x, y, width, height, radians = (_number(box, name, path) for name in ("cx", "cy", "w", "h", "angle"))
    return box_around_rectangle((x, y), (width, height), math.degrees(math.remainder(radians, 2 * math.pi)))


def _around_polygon(outline: ET.Element, path: Path) -> Box:
    """Return the box around `<x1> <y1> <x2> …`, as Roboflow writes outlines, or `<pt><x> <y></pt>`, as LabelMe does."""
    points: dict[str, list[float]] = {"x": [], "y": []}
    for parent in outline.iter():
        for child in parent:
            if match := _COORDINATE.fullmatch(child.tag):
                points[match[1]].append(_number(parent, child.tag, path))
    if len(points["x"]) != len(points["y"]) or len(points["x"]) < 3:
        counts = f"{len(points['x'])} x and {len(points['y'])} y"
        raise DataError(f"{shown(path)}: <polygon>: expected x and y of at least three points, found {counts}")
    return box_around_points([value for point in zip(points["x"], points["y"], strict=True) for value in point])


def _is_difficult(text: str, path: Path, notices: Notices) -> bool:
    word = text.lower()
    if word in _YES or word in _NO:
        return word in _YES
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        reason = "objects whose <difficult> is neither yes nor no, read as not difficult"
        notices.assumed.add(reason, f"{path.name}: {text[:_LONGEST]}")
        return False
    return number != 0


def _number(element: ET.Element, tag: str, path: Path) -> float:
    text = element.findtext(tag)
    try:
        value = float(text or "")
    except ValueError:
        raise DataError(
            f"{shown(path)}: <{element.tag}><{tag}>: expected a number, found {_shown_text(text)}"
        ) from None
    if not math.isfinite(value):
        raise DataError(f"{shown(path)}: <{element.tag}><{tag}>: expected a finite number, found {_shown_text(text)}")
    return value


def _shown_text(text: str | None) -> str:
    return "none" if text is None else repr(text[:_LONGEST])
