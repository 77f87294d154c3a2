"""VoTT's JSON export: assets by id, each with its size and regions in pixels.

https://github.com/microsoft/VoTT
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

from boxwright.base.errors import DataError
from boxwright.data.layouts.content import Content
from boxwright.data.layouts.json_files import as_list, as_object, as_text, numbers_of, read_json
from boxwright.data.layouts.places import beginning_of, only_file
from boxwright.data.reading import finite_number, whole_number

_CORNER_AND_SIZE = ("left", "top", "width", "height")


def is_vott(path: Path) -> bool:
    """Return whether a file, or the only such file in a folder, is VoTT's export."""
    return _file(path) is not None


def _file(path: Path) -> Path | None:
    return only_file(path, _begins_like_vott, ".json")


def _begins_like_vott(path: Path) -> bool:
    text = beginning_of(path)
    return text.lstrip().startswith("{") and '"assets"' in text and ('"asset"' in text or '"visitedAssets"' in text)


def read_vott(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return VoTT's annotations as the content of a COCO file.

    Raises:
        DataError: If something is not as VoTT writes it, or a region has several tags.
    """
    del image_folder  # names are relative to any
    file = _file(path) or path
    stored = as_object(read_json(file), str(file))
    content = Content(file)
    for key, entry in as_object(stored.get("assets"), f"{file}: assets").items():
        where = f"{file}: asset {key[:60]}"
        asset = as_object(as_object(entry, where).get("asset"), f"{where}: asset")
        size = as_object(asset.get("size"), f"{where}: size")
        sides = (whole_number(size.get(side), f"{where}: {side}") for side in ("height", "width"))
        # An asset is a file's address, in which spaces are escaped.
        image = content.add_image(unquote(as_text(asset.get("name"), f"{where}: name")), (next(sides), next(sides)))
        for number, region in enumerate(as_list(entry.get("regions") or [], f"{where}: regions"), start=1):
            _add(content, image, as_object(region, f"{where}: region {number}"), f"{where}: region {number}")
    return content.as_coco()


def _add(content: Content, image: int, region: dict[str, Any], where: str) -> None:
    tags = as_list(region.get("tags"), f"{where}: tags")
    if len(tags) != 1:
        raise DataError(f"{where}: expected one tag, found {str(tags)[:60]}")
    place = as_object(region.get("boundingBox"), f"{where}: boundingBox")
    left, top, width, height = numbers_of(place, _CORNER_AND_SIZE, where)
    outline: list[float] = []
    if region.get("type") == "POLYGON":
        points = [as_object(point, f"{where}: points") for point in as_list(region.get("points"), f"{where}: points")]
        outline = [finite_number(point.get(axis), f"{where}: points") for point in points for axis in ("x", "y")]
    outlines = [outline] if len(outline) >= 6 else []
    content.add(image, as_text(tags[0], f"{where}: tags"), (left, top, left + width, top + height), where, outlines)
