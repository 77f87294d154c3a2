"""FiftyOne's own format of detections, FiftyOneImageDetectionDataset: `labels.json`, and images in `data`.

https://docs.voxel51.com/user_guide/import_datasets.html
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import is_folder, shown
from boxwright.data.image_io import read_header
from boxwright.data.picture_files import pictures_in
from boxwright.data.reading import finite_number, read_json

FIFTYONE_LABELS = "labels.json"
_FIRST = re.compile(r'\s*\{\s*("classes"\s*:[^{}]*,\s*)?"labels"\s*:\s*\{')
_FOLDER = "data"


def is_fiftyone_text(text: str) -> bool:
    """Return whether a JSON file is FiftyOne's, by its beginning."""
    return _FIRST.match(text) is not None and '"images"' not in text


def read_fiftyone(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return FiftyOne's labels as the content of a COCO file; images without labels are left out.

    Args:
        path: Of the file.
        image_folder: The folder of the images, which labels name without their endings; by default `data` beside it.

    Raises:
        DataError: If an image is missing or not readable, or something is not as FiftyOne writes it.
    """
    content = read_json(path)
    folder = image_folder or path.parent / _FOLDER
    files = _files(folder, path)
    labeled = {key: value for key, value in content["labels"].items() if value is not None}
    numbers = _numbers(content.get("classes"), labeled, path)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, (key, objects) in enumerate(labeled.items(), start=1):
        where = f"{shown(path)}: {key[:100]!r}"
        if key not in files:
            raise DataError(f"{where}: no such image in {shown(folder)}")
        # FiftyOne shows pictures upright, and its boxes are shares of them.
        height, width = read_header(folder / files[key]).size_for(None, upright=True)
        name = files[key] if image_folder else f"{_FOLDER}/{files[key]}"
        images.append({"id": number, "file_name": name, "width": width, "height": height})
        for position, detection in enumerate(objects):
            place = f"{where}: object {position + 1}"
            box = [side * scale for side, scale in zip(_box(detection, place), (width, height) * 2, strict=True)]
            row = {"id": len(annotations) + 1, "image_id": number, "bbox": box, "iscrowd": 0}
            annotations.append({**row, "category_id": numbers[_name(detection, content.get("classes"), place)]})
    categories = [{"id": number, "name": name} for name, number in numbers.items()]
    return {"images": images, "annotations": annotations, "categories": categories}


def _files(folder: Path, path: Path) -> dict[str, str]:
    """Return the images in a folder, below it too: name without ending to name."""
    if not is_folder(folder):
        raise DataError(f"{shown(path)}: no folder {shown(folder)} of images; name it: image_folder")
    files: dict[str, str] = {}
    for file in pictures_in(folder):
        name = file.relative_to(folder).as_posix()
        key = name.removesuffix(file.suffix)
        if key in files:
            raise DataError(f"{shown(path)}: {key!r} may be {files[key]} or {name}; rename one of them")
        files[key] = name
    return files


def _numbers(classes: object, labeled: dict[str, Any], path: Path) -> dict[str, int]:
    """Return the classes, in the file's order or, if it has none, in alphabetical order, each with its number."""
    if classes is not None and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise DataError(f"{shown(path)}: classes: expected a list of names, found {str(classes)[:60]}")
    for key, objects in labeled.items():
        if not isinstance(objects, list) or not all(isinstance(detection, dict) for detection in objects):
            raise DataError(f"{shown(path)}: {key[:100]!r}: expected a list of objects, found {str(objects)[:60]}")
    names = classes or sorted({str(detection.get("label")) for objects in labeled.values() for detection in objects})
    return {name: number for number, name in enumerate(dict.fromkeys(names), start=1)}


def _name(detection: dict[str, Any], classes: list[str] | None, where: str) -> str:
    """Return an object's class, which is its number where the file lists the classes."""
    label = detection.get("label")
    if not classes:
        return str(label)
    if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(classes):
        return classes[label]
    if isinstance(label, str) and label in classes:
        return label
    raise DataError(f"{where}: label: expected a number from 0 to {len(classes) - 1}, found {str(label)[:60]!r}")


def _box(detection: dict[str, Any], where: str) -> list[float]:
    box = detection.get("bounding_box")
    if not isinstance(box, list) or len(box) != 4:
        raise DataError(f"{where}: bounding_box: expected [x, y, width, height], found {str(box)[:60]}")
    return [finite_number(value, f"{where}: bounding_box") for value in box]
