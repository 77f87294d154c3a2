"""Annotation tools' exports of all pictures in one JSON file: Create ML's and VoTT's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from boxwright.base.errors import DataError
from boxwright.data.layouts.content import Content
from boxwright.data.reading import (
    as_list,
    as_object,
    as_text,
    finite_number,
    read_json,
    read_numbers,
    read_objects,
    whole_number,
)

# Create ML's JSON, as Roboflow and RectLabel export it: a list of images with labels and centers in pixels.
# https://developer.apple.com/documentation/createml/building-an-object-detector-data-source
_IMAGE_KEYS = ("image", "imagefilename", "imageFilename", "filename")
_ANNOTATION_KEYS = ("annotations", "annotation")
_CENTERED = ("x", "y", "width", "height")
_FIRST = re.compile(r'\s*\[\s*\{[^{}\[\]]*"(image|imagefilename|imageFilename|filename)"\s*:\s*"')
_OBJECTS = re.compile(r'"annotations?"\s*:\s*\[')


def is_createml_text(text: str) -> bool:
    """Return whether a JSON file is Create ML's, by its beginning."""
    if not _FIRST.match(text) or not _OBJECTS.search(text):
        return False
    # Images without objects say nothing else; Label Studio's tasks have results.
    return '"coordinates"' in text or '"result"' not in text


def read_createml(file: Path) -> dict[str, Any]:
    """Return Create ML's annotations as the content of a COCO file.

    Raises:
        DataError: If something is not as Create ML writes it.
    """
    content = Content(file)
    for number, entry in enumerate(as_list(read_json(file), str(file)), start=1):
        row = as_object(entry, f"{file}: image {number}")
        name = as_text(_first_value(row, _IMAGE_KEYS), f"{file}: image {number}: image")
        image = content.add_image(name)
        where = f"{file}: {name[:100]!r}"
        for place, item in read_objects(_first_value(row, _ANNOTATION_KEYS) or [], where, "annotation"):
            label = as_text(item.get("label"), f"{place}: label")
            x, y, width, height = read_numbers(
                as_object(item.get("coordinates"), f"{place}: coordinates"), _CENTERED, place
            )
            if width < 0 or height < 0:
                raise DataError(f"{place}: coordinates: a width and height of {width:g}, {height:g}")
            box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            content.add(image, label, box, place)
    return content.as_coco()


def _first_value(row: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((row[key] for key in keys if key in row), None)


# VoTT's JSON export: assets by id, each with its size and regions in pixels. https://github.com/microsoft/VoTT
_CORNER_AND_SIZE = ("left", "top", "width", "height")


def is_vott_text(text: str) -> bool:
    """Return whether a JSON file is VoTT's export, by its beginning."""
    return text.lstrip().startswith("{") and '"assets"' in text and ('"asset"' in text or '"visitedAssets"' in text)


def read_vott(file: Path) -> dict[str, Any]:
    """Return VoTT's annotations as the content of a COCO file.

    Raises:
        DataError: If something is not as VoTT writes it, or a region has several tags.
    """
    stored = as_object(read_json(file), str(file))
    content = Content(file)
    for key, entry in as_object(stored.get("assets"), f"{file}: assets").items():
        where = f"{file}: asset {key[:60]}"
        asset = as_object(as_object(entry, where).get("asset"), f"{where}: asset")
        size = as_object(asset.get("size"), f"{where}: size")
        sides = (whole_number(size.get(side), f"{where}: {side}") for side in ("height", "width"))
        # An asset is a file's address, in which spaces are escaped.
        image = content.add_image(unquote(as_text(asset.get("name"), f"{where}: name")), (next(sides), next(sides)))
        for place, region in read_objects(entry.get("regions") or [], where, "region"):
            _add_vott_region(content, image, region, place)
    return content.as_coco()


def _add_vott_region(content: Content, image: int, region: dict[str, Any], where: str) -> None:
    tags = as_list(region.get("tags"), f"{where}: tags")
    if len(tags) != 1:
        raise DataError(f"{where}: expected one tag, found {str(tags)[:60]}")
    place = as_object(region.get("boundingBox"), f"{where}: boundingBox")
    left, top, width, height = read_numbers(place, _CORNER_AND_SIZE, where)
    outline: list[float] = []
    if region.get("type") == "POLYGON":
        points = [as_object(point, f"{where}: points") for point in as_list(region.get("points"), f"{where}: points")]
        outline = [finite_number(point.get(axis), f"{where}: points") for point in points for axis in ("x", "y")]
    outlines = [outline] if len(outline) >= 6 else []
    content.add(image, as_text(tags[0], f"{where}: tags"), (left, top, left + width, top + height), where, outlines)
