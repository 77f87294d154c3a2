"""Supervisely's projects: `meta.json` with the classes, and data sets with `ann/NAME.json` beside `img/NAME`.

https://docs.supervisely.com/customization-and-integration/00_ann_format_navi
"""

from __future__ import annotations

import base64
import binascii
import zlib
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, is_folder
from boxwright.base.limits import IMAGE_PIXELS
from boxwright.data.image_io import image_size
from boxwright.data.layouts.content import Content, files_in, find_picture, folders_in
from boxwright.data.picture_files import PictureFiles
from boxwright.data.reading import as_list, as_object, as_text, read_json, read_objects, read_points, whole_number
from boxwright.data.rotated import Box, box_around_points

_META = "meta.json"


def is_supervisely(path: Path) -> bool:
    """Return whether a folder is a project or a data set of one, or a file is a project's `meta.json`."""
    return bool(_data_sets(path)) and _meta(path) is not None


def _data_sets(path: Path) -> list[Path]:
    folder = path.parent if path.name == _META else path
    return [part for part in (folder, *folders_in(folder)) if is_folder(part / "ann") and is_folder(part / "img")]


def _meta(path: Path) -> Path | None:
    files = [path] if path.name == _META else [path / _META, path.parent / _META]
    return next((file for file in files if is_file(file)), None)


def read_supervisely(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return a project's, or one data set's, annotations as the content of a COCO file.

    Rectangles, polygons and bitmaps become boxes; other kinds are left out and counted.

    Args:
        path: A project, with all its data sets, or one data set, whose classes are the project's.
        image_folder: Names are relative to it in place of the project's folder.

    Raises:
        DataError: If something is not as Supervisely writes it.
    """
    folder = path.parent if path.name == _META else path
    meta = _meta(path)
    if meta is None:
        raise DataError(f"{path}: no {_META}")
    content = Content(path, _classes(meta))
    for data_set in _data_sets(path):
        inside = (data_set / "img").relative_to(folder)
        pictures = PictureFiles(data_set / "img")
        for file in files_in(data_set / "ann", ".json"):
            # `a.png.json` describes `a.png`; older exports have `a.json`.
            is_named = is_file(data_set / "img" / file.stem)
            name = file.stem if is_named else find_picture(pictures, file.stem, "")
            _read_file(content, file, name if image_folder else (inside / name).as_posix())
    return content.as_coco()


def _classes(meta: Path) -> list[str]:
    rows = as_list(as_object(read_json(meta), str(meta)).get("classes"), f"{meta}: classes")
    return [as_text(as_object(row, f"{meta}: classes").get("title"), f"{meta}: title") for row in rows]


def _read_file(content: Content, file: Path, name: str) -> None:
    stored = as_object(read_json(file), str(file))
    size = as_object(stored.get("size"), f"{file}: size")
    height, width = (whole_number(size.get(side), f"{file}: {side}") for side in ("height", "width"))
    image = content.add_image(name, (height, width))
    for where, row in read_objects(stored.get("objects"), str(file), "object"):
        label, kind = as_text(row.get("classTitle"), f"{where}: classTitle"), row.get("geometryType")
        if kind == "bitmap":
            content.add(image, label, _around_bitmap(as_object(row.get("bitmap"), f"{where}: bitmap"), where), where)
        elif kind in ("rectangle", "polygon"):
            least = 2 if kind == "rectangle" else 3
            corners = as_object(row.get("points"), f"{where}: points").get("exterior")
            points = read_points(corners, f"{where}: exterior", least)
            outlines = [points] if kind == "polygon" else []
            content.add(image, label, box_around_points(points), where, outlines)
        else:
            content.leave_out(str(kind)[:40])


def _around_bitmap(bitmap: dict[str, Any], where: str) -> Box:
    """Return the box of a mask, which is a PNG of the object's own size, compressed, and the place of its corner."""
    left, top = read_points([bitmap.get("origin")], f"{where}: origin", least=1)
    try:
        packed = base64.b64decode(as_text(bitmap.get("data"), f"{where}: data"), validate=True)
        # A PNG is hardly larger than its pixels.
        data = zlib.decompressobj().decompress(packed, IMAGE_PIXELS.value)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise DataError(f"{where}: bitmap: {str(error)[:100]}") from None
    height, width = image_size(data, f"{where}: bitmap")
    return left, top, left + width, top + height
