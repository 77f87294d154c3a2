"""Create ML's JSON, as Roboflow and RectLabel export it: a list of images with labels and centers in pixels.

https://developer.apple.com/documentation/createml/building-an-object-detector-data-source
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.data.layouts.content import Content
from boxwright.data.layouts.json_files import as_list, as_object, as_text, numbers_of, read_json
from boxwright.data.layouts.places import beginning_of, only_file

_IMAGE_KEYS = ("image", "imagefilename", "imageFilename", "filename")
_ANNOTATION_KEYS = ("annotations", "annotation")
_CENTERED = ("x", "y", "width", "height")
_FIRST = re.compile(r'\s*\[\s*\{[^{}\[\]]*"(image|imagefilename|imageFilename|filename)"\s*:\s*"')
_OBJECTS = re.compile(r'"annotations?"\s*:\s*\[')


def is_createml(path: Path) -> bool:
    """Return whether a file, or the only such file in a folder, is Create ML's."""
    return _file(path) is not None


def _file(path: Path) -> Path | None:
    return only_file(path, _begins_like_createml, ".json")


def _begins_like_createml(path: Path) -> bool:
    text = beginning_of(path)
    if not _FIRST.match(text) or not _OBJECTS.search(text):
        return False
    # Images without objects say nothing else; Label Studio's tasks have results.
    return '"coordinates"' in text or '"result"' not in text


def read_createml(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return Create ML's annotations as the content of a COCO file.

    Raises:
        DataError: If something is not as Create ML writes it.
    """
    del image_folder  # names are relative to any
    file = _file(path) or path
    content = Content(file)
    for number, entry in enumerate(as_list(read_json(file), str(file)), start=1):
        row = as_object(entry, f"{file}: image {number}")
        name = as_text(_first_value(row, _IMAGE_KEYS), f"{file}: image {number}: image")
        image = content.add_image(name)
        where = f"{file}: {name[:100]!r}"
        for position, item in enumerate(
            as_list(_first_value(row, _ANNOTATION_KEYS) or [], f"{where}: annotations"), start=1
        ):
            place = f"{where}: annotation {position}"
            label = as_text(as_object(item, place).get("label"), f"{place}: label")
            x, y, width, height = numbers_of(
                as_object(item.get("coordinates"), f"{place}: coordinates"), _CENTERED, place
            )
            if width < 0 or height < 0:
                raise DataError(f"{place}: coordinates: a width and height of {width:g}, {height:g}")
            box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            content.add(image, label, box, place)
    return content.as_coco()


def _first_value(row: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((row[key] for key in keys if key in row), None)
