"""LabelMe's JSON, which X-AnyLabeling writes too: one file a picture, with shapes of points in pixels.

https://github.com/wkentaro/labelme
"""

from __future__ import annotations

import logging
import math
import os
import re
from pathlib import Path
from typing import Any

from boxwright.base.files import is_file, is_folder
from boxwright.data.layouts.content import Content, containing_folder, files_in, read_beginning
from boxwright.data.picture_files import PictureFiles
from boxwright.data.reading import as_object, as_text, read_json, read_objects, read_points, whole_number
from boxwright.data.rotated import Box, box_around_points

_LOG = logging.getLogger("boxwright")
# The JSON files lie in one of these, if not beside the pictures.
_SUBFOLDERS = ("annotations", "labels", "json", "labelme")
# Files that are opened: others, such as a list of classes, may come first.
_TRIED = 3
_KEYS = re.compile(r'"(shapes|imageData)"\s*:')
_OUTLINED = ("polygon", "rotation", "mask")


def is_labelme(path: Path) -> bool:
    """Return whether a file is LabelMe's, or one of the first JSON files in a folder is."""
    return any(_begins_like_labelme(file) for file in _files(path)[:_TRIED])


def _begins_like_labelme(path: Path) -> bool:
    text = read_beginning(path)
    return text.lstrip().startswith("{") and _KEYS.search(text) is not None and '"images"' not in text


def _files(path: Path) -> list[Path]:
    if is_file(path):
        return [path] if path.suffix.lower() == ".json" else []
    for folder in (path, *(path / name for name in _SUBFOLDERS)):
        if is_folder(folder) and (files := files_in(folder, ".json")):
            return files
    return []


def read_labelme(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return LabelMe's shapes as the content of a COCO file.

    Rectangles, polygons, circles and masks become boxes; points, lines and linestrips are left out, and so are other
    JSON files, both counted in the log. Where each file lies beside a picture of its own name, that is its picture,
    whatever `imagePath` says, as files are renamed more often than their contents.

    Raises:
        DataError: If something is not as LabelMe writes it.
    """
    content = Content(path)
    files = [file for file in _files(path) if _begins_like_labelme(file)]
    for _ in range(len(_files(path)) - len(files)):
        content.leave_out("JSON file that is not LabelMe's")
    base = image_folder or containing_folder(path)
    own = _pictures_beside(files)
    renamed = 0
    for file in files:
        stored = as_object(read_json(file), str(file))
        named = as_text(stored.get("imagePath"), f"{file}: imagePath")
        name = own.get(file, named)
        renamed += named.replace("\\", "/").rpartition("/")[2] != name.replace("\\", "/").rpartition("/")[2]
        image = content.add_image(_relative(file.parent, name, base), _size(stored, file))
        for where, shape in read_objects(stored.get("shapes"), str(file), "shape"):
            _add(content, image, shape, where)
    if renamed:
        _LOG.warning(
            "%s: imagePath of %d files names another picture than the one beside it, which is used", path, renamed
        )
    return content.as_coco()


def _pictures_beside(files: list[Path]) -> dict[Path, str]:
    """Return the picture of the same name beside each file; none if a file has not exactly one."""
    folders = {folder: PictureFiles(folder) for folder in {file.parent for file in files}}
    named = {}
    for file in files:
        beside = [path for path in folders[file.parent].with_stem(file.stem) if path.parent == file.parent]
        if len(beside) != 1:
            return {}
        named[file] = beside[0].name
    return named


def _relative(folder: Path, name: str, base: Path) -> str:
    """Return a picture's name relative to the folder of pictures, or as it is if no file lies where it points."""
    path = folder / name.replace("\\", "/")
    return os.path.relpath(path, base).replace(os.sep, "/") if is_file(path) else name


def _size(stored: dict[str, Any], file: Path) -> tuple[int, int] | None:
    sides = [stored.get("imageHeight"), stored.get("imageWidth")]
    if None in sides:
        return None
    return whole_number(sides[0], f"{file}: imageHeight"), whole_number(sides[1], f"{file}: imageWidth")


def _add(content: Content, image: int, shape: dict[str, Any], where: str) -> None:
    # Files of LabelMe before 3.0 have no types: all shapes are polygons.
    kind = shape.get("shape_type") or "polygon"
    label = as_text(shape.get("label"), f"{where}: label")
    if kind not in ("rectangle", "circle", *_OUTLINED):
        content.leave_out(str(kind)[:40])
        return
    points = read_points(shape.get("points"), f"{where}: points", least=3 if kind in ("polygon", "rotation") else 2)
    outlines = [points] if len(points) >= 6 and kind in ("polygon", "rotation") else []
    box = _around_circle(points) if kind == "circle" else box_around_points(points)
    content.add(image, label, box, where, outlines)


def _around_circle(points: list[float]) -> Box:
    """Return the box around a circle, of a center and a point on it."""
    x, y, *on_it = points[:4]
    radius = math.dist((x, y), on_it)
    return x - radius, y - radius, x + radius, y + radius
