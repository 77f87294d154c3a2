"""VGG Image Annotator 2: `via_region_data.json`, its CSV, and projects; regions in pixels with attributes.

https://www.robots.ox.ac.uk/~vgg/software/via/
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import is_folder
from boxwright.data.layouts.content import Content, file_in, only_file, read_beginning
from boxwright.data.reading import (
    as_list,
    as_object,
    as_text,
    finite_number,
    parse_json,
    read_json,
    read_numbers,
    read_table,
)
from boxwright.data.rotated import Box, box_around_ellipse, box_around_points

_LOG = logging.getLogger("boxwright")
_REGION_DATA = "via_region_data.json"
_IMAGES = "_via_img_metadata"
_CLASS_WORDS = ("class", "label", "category", "type", "name", "object")
# Balloons, as in Mask R-CNN's best-known tutorial, are outlined without any attribute.
_NAMELESS = "object"
_Region = tuple[dict[str, Any], dict[str, Any], str]


def is_via(path: Path) -> bool:
    """Return whether a file, or the only such file in a folder, is VIA's."""
    return _file(path) is not None


def _file(path: Path) -> Path | None:
    if is_folder(path) and (named := file_in(path, _REGION_DATA)) is not None:
        return named
    return only_file(path, _begins_like_via, ".json", ".csv")


def _begins_like_via(path: Path) -> bool:
    text = read_beginning(path)
    if path.suffix.lower() == ".csv":
        return "region_shape_attributes" in text.partition("\n")[0]
    return text.lstrip().startswith("{") and ("_via_" in text or ('"regions"' in text and '"filename"' in text))


def read_via(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return VIA's regions as the content of a COCO file.

    Rectangles, polygons, circles and ellipses become boxes; polylines and points are left out and counted. The class is
    the attribute that most regions have; of several, one with a usual name, else the first, which the log says. A
    region without it is to be ignored, as it is of an unknown class.

    Raises:
        DataError: If something is not as VIA writes it.
    """
    del image_folder  # names are relative to any
    file = _file(path) or path
    pictures = list(_from_csv(file) if file.suffix.lower() == ".csv" else _from_json(file))
    attribute = _class_attribute([attributes for _, regions in pictures for _, attributes, _ in regions], file)
    content = Content(file)
    for name, regions in pictures:
        image = content.add_image(name)
        for shape, attributes, where in regions:
            box, outlines = _box(shape, where)
            if box is None:
                content.leave_out(str(shape.get("name"))[:40])
            elif (label := _value(attributes, attribute, where) if attribute else _NAMELESS) is None:
                content.ignore(image, box)
                content.leave_out(f"region without the attribute {attribute!r}, ignored")
            else:
                content.add(image, label, box, where, outlines)
    return content.as_coco()


def _from_json(file: Path) -> Iterator[tuple[str, list[_Region]]]:
    stored = as_object(read_json(file), str(file))
    for key, entry in as_object(stored.get(_IMAGES, stored), str(file)).items():
        row = as_object(entry, f"{file}: {key[:60]!r}")
        where = f"{file}: {key[:60]!r}"
        given = row.get("regions") or []
        # VIA 1 numbers the regions by keys.
        regions = list(given.values()) if isinstance(given, dict) else as_list(given, f"{where}: regions")
        yield (
            as_text(row.get("filename"), f"{where}: filename"),
            [_region(region, f"{where}: region {number}") for number, region in enumerate(regions, start=1)],
        )


def _region(region: Any, where: str) -> _Region:
    row = as_object(region, where)
    attributes = as_object(row.get("region_attributes") or {}, f"{where}: region_attributes")
    return as_object(row.get("shape_attributes"), f"{where}: shape_attributes"), attributes, where


def _from_csv(file: Path) -> Iterator[tuple[str, list[_Region]]]:
    for where, row in read_table(file):
        columns = [row.get(f"region_{kind}attributes") or "{}" for kind in ("shape_", "")]
        shape, attributes = (as_object(parse_json(column, where), where) for column in columns)
        # A picture without regions has one row with an empty shape.
        yield as_text(row.get("filename"), f"{where}: filename"), [(shape, attributes, where)] if shape else []


def _class_attribute(regions: list[dict[str, Any]], file: Path) -> str:
    """Return the attribute that holds the class; empty if no region has any."""
    counts = Counter(
        name for attributes in regions for name, value in attributes.items() if value not in ("", {}, None)
    )
    if not counts:
        if regions:
            _LOG.warning("%s: no region has an attribute: all are of the class %r", file, _NAMELESS)
        return ""
    most = [name for name, count in counts.items() if count == max(counts.values())]
    chosen = next((name for word in _CLASS_WORDS for name in most if word in name.lower()), most[0])
    if len(counts) > 1:
        others = ", ".join(repr(name) for name in counts if name != chosen)[:200]
        _LOG.warning("%s: the class is the attribute %r; not read: %s", file, chosen, others)
    return chosen


def _value(attributes: dict[str, Any], name: str, where: str) -> str | None:
    """Return a region's class, which checkboxes hold as {"class": true}; None if it has none."""
    value = attributes.get(name)
    if isinstance(value, dict):
        ticked = [key for key, on in value.items() if on]
        if len(ticked) > 1:
            raise DataError(f"{where}: {name}: expected one class, found {', '.join(ticked)[:60]}")
        value = ticked[0] if ticked else None
    return None if value in (None, "") else str(value).strip()


def _box(shape: dict[str, Any], where: str) -> tuple[Box | None, list[list[float]]]:
    """Return the box around a region and its outline; None for a kind without an area."""
    kind = shape.get("name")
    if kind == "rect":
        x, y, width, height = read_numbers(shape, ("x", "y", "width", "height"), where)
        return (x, y, x + width, y + height), []
    if kind == "circle":
        x, y, radius = read_numbers(shape, ("cx", "cy", "r"), where)
        return (x - radius, y - radius, x + radius, y + radius), []
    if kind == "ellipse":
        x, y, wide, tall = read_numbers(shape, ("cx", "cy", "rx", "ry"), where)
        turned = math.degrees(finite_number(shape.get("theta") or 0, f"{where}: theta"))
        return box_around_ellipse((x, y), (wide, tall), turned), []
    if kind != "polygon":
        return None, []
    axes = [as_list(shape.get(f"all_points_{axis}"), f"{where}: all_points_{axis}") for axis in "xy"]
    if len(axes[0]) != len(axes[1]) or len(axes[0]) < 3:
        raise DataError(f"{where}: a polygon of {len(axes[0])} x and {len(axes[1])} y; expected three points or more")
    points = [finite_number(value, f"{where}: polygon") for pair in zip(*axes, strict=True) for value in pair]
    return box_around_points(points), [points]
