"""Datumaro's JSON: `annotations/SUBSET.json` with the classes and items, pictures in `images/SUBSET`.

https://open-edge-platform.github.io/datumaro/
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, is_folder
from boxwright.data.coco_masks import check_mask_memory, decode_mask
from boxwright.data.layouts.content import Content, containing_folder, only_file, read_beginning
from boxwright.data.reading import as_list, as_object, as_text, finite_number, read_json, read_objects, whole_number
from boxwright.data.rotated import Box, box_around_points, box_around_rectangle

_ANNOTATIONS, _IMAGES = "annotations", "images"
_KINDS = {"bbox": 4, "ellipse": 4, "rotated_bbox": 5}


def is_datumaro(path: Path) -> bool:
    """Return whether a file, or the only one in a folder's `annotations`, is Datumaro's."""
    return _file(path) is not None


def _file(path: Path) -> Path | None:
    folder = path / _ANNOTATIONS
    return only_file(folder if is_folder(folder) else path, _begins_like_datumaro, ".json")


def _begins_like_datumaro(path: Path) -> bool:
    text = read_beginning(path)
    if not text.lstrip().startswith("{") or '"images"' in text:
        return False
    return '"dm_format_version"' in text or ('"items"' in text and '"label"' in text and '"categories"' in text)


def datumaro_folder(path: Path) -> Path:
    """Return the folder that has `annotations` and `images`, or the file's own."""
    folder = containing_folder(path)
    return folder.parent if folder.name == _ANNOTATIONS and is_file(path) else folder


def read_datumaro(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return Datumaro's annotations as the content of a COCO file.

    Boxes, turned boxes, ellipses, polygons and masks become boxes. Polygons of one group and class are one object, and
    the only box of the group is theirs. Other kinds are left out and counted; an object without a class is to be
    ignored.

    Raises:
        DataError: If something is not as Datumaro writes it.
    """
    file = _file(path) or path
    stored = as_object(read_json(file), str(file))
    categories = as_object(stored.get("categories"), f"{file}: categories")
    labels = as_list(as_object(categories.get("label"), f"{file}: categories: label").get("labels"), f"{file}: labels")
    names = [as_text(as_object(row, f"{file}: labels").get("name"), f"{file}: labels: name") for row in labels]
    content = Content(file, names)
    base = image_folder or datumaro_folder(path)
    for place, item in read_objects(stored.get("items"), str(file), "item"):
        name = as_text(item.get("id"), f"{place}: id")
        where = f"{file}: item {name[:100]!r}"
        picture = as_object(item.get("image") or item.get("media") or {}, f"{where}: image")
        image = content.add_image(_file_name(picture, name, base, file.stem), _size(picture, where))
        _add_all(content, image, item.get("annotations"), names, where)
    return content.as_coco()


def _file_name(picture: dict[str, Any], item: str, base: Path, subset: str) -> str:
    """Return a picture's name relative to the folder; its path may lack the folders of pictures and of the subset."""
    path = picture.get("path")
    named = path.replace("\\", "/") if isinstance(path, str) and path else f"{item}.jpg"
    tried = (named, f"{_IMAGES}/{subset}/{named}", f"{subset}/{named}", f"{_IMAGES}/{named}")
    return next((name for name in tried if is_file(base / name)), tried[1])


def _size(picture: dict[str, Any], where: str) -> tuple[int, int] | None:
    size = picture.get("size")
    if not isinstance(size, list) or len(size) != 2:
        return None
    return whole_number(size[0], f"{where}: height"), whole_number(size[1], f"{where}: width")


def _add_all(content: Content, image: int, rows: Any, names: list[str], where: str) -> None:
    """Add an item's objects: the parts of a group together, others one by one."""
    groups: dict[tuple[int, str], list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    for place, row in read_objects(rows, where, "annotation"):
        kind = row.get("type")
        if kind not in (*_KINDS, "polygon", "mask"):
            content.leave_out(str(kind)[:40])
            continue
        group = whole_number(row.get("group") or 0, f"{place}: group")
        groups[(group, str(row.get("label_id"))) if group else (0, place)].append((place, row))
    for parts in groups.values():
        outlined = any(row["type"] in ("polygon", "mask") for _, row in parts)
        for members in [parts] if outlined else [[part] for part in parts]:
            _add(content, image, members, names)


def _add(content: Content, image: int, parts: list[tuple[str, dict[str, Any]]], names: list[str]) -> None:
    """Add one object of one or more parts."""
    where, first = parts[0]
    boxes = [_box(row, place) for place, row in parts]
    drawn = [box for box, (_, row) in zip(boxes, parts, strict=True) if row["type"] == "bbox"]
    box = drawn[0] if len(drawn) == 1 else _union(boxes)
    label = first.get("label_id")
    if label is None:
        content.ignore(image, box)
        content.leave_out("object without a class, ignored")
        return
    number = whole_number(label, f"{where}: label_id")
    if not 0 <= number < len(names):
        raise DataError(f"{where}: label_id: expected 0 to {len(names) - 1}, found {number}")
    outlines = [_numbers(row, "points", place) for place, row in parts if row["type"] == "polygon"]
    content.add(image, names[number], box, where, outlines)


def _union(boxes: Iterable[Box]) -> Box:
    lows_x, lows_y, highs_x, highs_y = zip(*boxes, strict=True)
    return min(lows_x), min(lows_y), max(highs_x), max(highs_y)


def _numbers(row: dict[str, Any], key: str, where: str) -> list[float]:
    return [finite_number(value, f"{where}: {key}") for value in as_list(row.get(key), f"{where}: {key}")]


def _box(row: dict[str, Any], where: str) -> Box:
    kind = row["type"]
    if kind == "mask":
        return _around_mask(as_object(row.get("rle"), f"{where}: rle"), where)
    values = _numbers(row, "points" if kind in ("polygon", "ellipse") else "bbox", where)
    if kind == "polygon":
        if len(values) < 6 or len(values) % 2:
            raise DataError(f"{where}: points: expected x, y, … of three points or more, found {len(values)} numbers")
        return box_around_points(values)
    if len(values) != _KINDS[kind]:
        raise DataError(f"{where}: expected {_KINDS[kind]} numbers, found {len(values)}")
    if kind == "ellipse":
        return values[0], values[1], values[2], values[3]
    if kind == "rotated_bbox":
        return box_around_rectangle((values[0], values[1]), (values[2], values[3]), values[4])
    return values[0], values[1], values[0] + values[2], values[1] + values[3]


def _around_mask(lengths: dict[str, Any], where: str) -> Box:
    size = lengths.get("size")
    if not isinstance(size, list) or len(size) != 2:
        raise DataError(f"{where}: rle: expected size [height, width], found {str(size)[:60]}")
    height, width = whole_number(size[0], f"{where}: rle"), whole_number(size[1], f"{where}: rle")
    check_mask_memory(1, (height, width), where)
    rows, columns = np.nonzero(decode_mask(lengths, (height, width), where))
    if not len(rows):
        return 0.0, 0.0, 0.0, 0.0
    return float(columns.min()), float(rows.min()), float(columns.max()) + 1, float(rows.max()) + 1
