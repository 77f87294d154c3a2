"""Label Studio's JSON and JSON-MIN: a list of tasks, whose results have their places in percent of the image.

https://labelstud.io/guide/export and https://labelstud.io/guide/predictions
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, shown
from boxwright.data.reading import as_list, as_object, finite_number, read_json, whole_number
from boxwright.data.rotated import Box, box_around_ellipse, box_around_points, box_around_rectangle
from boxwright.data.rotated import center_turned_about_corner as turned

_LOG = logging.getLogger("boxwright")
_SHAPES = ("rectanglelabels", "polygonlabels", "ellipselabels")
# Label Studio stores an upload under its name after eight characters of its own.
_UPLOADED = re.compile(r"[0-9a-f]{8}-(?P<name>.+)")
_TASKS = re.compile(r"\s*\[\s*\{")
# Other kinds of labels in JSON-MIN, and what it has of its own.
_MIN_OTHERS = ("brushlabels", "keypointlabels", "choices")
_MIN_KEYS = ("annotation_id", "annotator")


def is_label_studio_text(text: str) -> bool:
    """Return whether a JSON file is Label Studio's list of tasks, by its beginning."""
    return _TASKS.match(text) is not None and any(f'"{key}"' in text for key in ("data", "result", "predictions"))


def is_json_min_text(text: str) -> bool:
    """Return whether a JSON file is Label Studio's JSON-MIN, by its beginning."""
    if not _TASKS.match(text) or '"result"' in text or '"data"' in text:
        return False
    return any(f'"{key}"' in text for key in (*_SHAPES, *_MIN_KEYS))


def read_label_studio(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return Label Studio's tasks as the content of a COCO file.

    Of a task's annotations, one counts: the ground truth, else the last that was not skipped; tasks without any are
    left out. Rotated boxes and ellipses become the upright boxes around them.

    Args:
        image_folder: The folder of the images, by default the file's own or `images` in it: uploads are found there
            under their own names or Label Studio's.

    Raises:
        DataError: If it is not Label Studio's export, or nothing is annotated.
    """
    return _tasks_as_coco(read_json(path), path, image_folder)


def read_json_min(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return Label Studio's JSON-MIN, a task's places under the names of its labels, as its JSON is read.

    Raises:
        DataError: If something is not as Label Studio writes it.
    """
    rows = as_list(read_json(path), str(path))
    tasks = [_min_task(as_object(row, f"{path}: task {number}")) for number, row in enumerate(rows, start=1)]
    return _tasks_as_coco(tasks, path, image_folder)


def _min_task(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as a task of the full export."""
    regions = [
        region for value in row.values() if isinstance(value, list) for region in value if isinstance(region, dict)
    ]
    results = [_min_result(region) for region in regions]
    # Without an annotation, a task has no annotation_id.
    annotated = bool(results) or any(key in row for key in _MIN_KEYS)
    annotations = [{"result": results}] if annotated else []
    return {"id": row.get("id", "?"), "data": row, "annotations": annotations}


def _min_result(region: dict[str, Any]) -> dict[str, Any]:
    kind = next((key for key in (*_SHAPES, *_MIN_OTHERS) if key in region), "region without a label")
    return {**region, "type": kind, "value": region}


def _tasks_as_coco(tasks: list[Any], path: Path, image_folder: Path | None) -> dict[str, Any]:
    folders = (image_folder,) if image_folder else (path.parent, path.parent / "images")
    images: list[dict[str, Any]] = []
    objects: list[tuple[int, str, dict[str, Any]]] = []
    left_out: Counter[str] = Counter()
    for number, task in enumerate(tasks):
        where = f"{shown(path)}: task {_id(task, number)}"
        results = _results(task, where)
        if results is None:
            left_out["task without annotations"] += 1
            continue
        image: dict[str, Any] = {"id": len(images) + 1, "file_name": _file_name(task, folders, where)}
        for place, result in _shapes(results, left_out, where):
            image["width"], image["height"] = _size(result, place)
            objects.append((image["id"], _label(result, place), _row(result, place)))
        images.append(image)
    if not images:
        raise DataError(f"{shown(path)}: none of {len(tasks)} tasks is annotated")
    if left_out:
        _LOG.warning("%s: left out: %s", path, ", ".join(f"{count} {kind}" for kind, count in sorted(left_out.items())))
    numbers = {name: number for number, name in enumerate(sorted({name for _, name, _ in objects}), start=1)}
    if not numbers:
        raise DataError(f"{shown(path)}: no box, polygon or ellipse with a label in {len(images)} annotated tasks")
    annotations = [
        {"id": count, "image_id": image_id, "category_id": numbers[name], **row}
        for count, (image_id, name, row) in enumerate(objects, start=1)
    ]
    categories = [{"id": number, "name": name} for name, number in numbers.items()]
    return {"images": images, "annotations": annotations, "categories": categories}


def _id(task: Any, number: int) -> str:
    return str(task.get("id", f"number {number}") if isinstance(task, dict) else f"number {number}")[:60]


def _results(task: Any, where: str) -> list[Any] | None:
    """Return the results of the annotation that counts; None for a task without any."""
    given = task.get("annotations") if isinstance(task, dict) else None
    if not isinstance(given, list):
        raise DataError(f"{where}: no list of annotations")
    if not all(isinstance(annotation, dict) and isinstance(annotation.get("result"), list) for annotation in given):
        raise DataError(f"{where}: annotations: expected objects with a list of results")
    valid = [annotation for annotation in given if not annotation.get("was_cancelled")]
    chosen = next((annotation for annotation in valid if annotation.get("ground_truth")), valid[-1] if valid else None)
    return None if chosen is None else chosen["result"]


def _file_name(task: dict[str, Any], folders: Sequence[Path], where: str) -> str:
    """Return the name of a task's image in one of the folders that images may be in."""
    data = task["data"] if isinstance(task.get("data"), dict) else {}
    address = data.get("image") or next((value for value in data.values() if _is_address(value)), None)
    if not isinstance(address, str):
        raise DataError(f"{where}: data: expected the address of an image, found {str(data)[:60]}")
    parts = urlsplit(address)
    named = parse_qs(parts.query).get("d", [""])[0] if "/local-files/" in parts.path else unquote(parts.path)
    # The whole path, if the folder has it; else the name alone, as uploads and object stores have folders of their own.
    plain = named.lstrip("/")
    name = plain.rpartition("/")[2]
    own = match["name"] if (match := _UPLOADED.fullmatch(name)) else name
    tried = [(folder, named) for folder in folders for named in (plain, name, own) if named]
    return next((named for folder, named in tried if is_file(folder / named)), name)


def _is_address(value: object) -> bool:
    return isinstance(value, str) and re.search(r"\.(jpe?g|png|bmp|gif|tiff?|webp)($|\?)", value.lower()) is not None


def _shapes(results: list[Any], left_out: Counter[str], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the results that are boxes, polygons or ellipses with labels, each with its place."""
    for number, result in enumerate(results):
        place = f"{where}: result {number + 1}"
        if not isinstance(result, dict):
            raise DataError(f"{place}: expected an object, found {str(result)[:60]}")
        kind = str(result.get("type"))
        if kind in _SHAPES:
            yield place, result
        elif kind == "brushlabels":
            raise DataError(f"{place}: a mask drawn with a brush; draw polygons, or export as COCO")
        else:
            left_out[kind[:40]] += 1


def _size(result: dict[str, Any], where: str) -> tuple[int, int]:
    sides = [whole_number(result.get(f"original_{side}"), f"{where}: original_{side}") for side in ("width", "height")]
    return sides[0], sides[1]


def _label(result: dict[str, Any], where: str) -> str:
    value = result.get("value")
    labels = value.get(result["type"]) if isinstance(value, dict) else None
    if not isinstance(labels, list) or len(labels) != 1 or not isinstance(labels[0], str):
        raise DataError(f"{where}: {result['type']}: expected one label, found {str(labels)[:60]}")
    return labels[0]


def _row(result: dict[str, Any], where: str) -> dict[str, Any]:
    """Return box and outline of a result as fields of a COCO annotation."""
    value, (width, height) = result["value"], _size(result, where)

    def pixels(name: str, side: int) -> float:
        return finite_number(value.get(name), f"{where}: {name}") * side / 100

    row: dict[str, Any] = {"iscrowd": 0}
    degrees = finite_number(value.get("rotation") or 0, f"{where}: rotation")
    if result["type"] == "polygonlabels":
        points = _points(value.get("points"), (width, height), where)
        row["segmentation"] = [points]
        box = box_around_points(points)
    elif result["type"] == "ellipselabels":
        center, radii = (pixels("x", width), pixels("y", height)), (pixels("radiusX", width), pixels("radiusY", height))
        box = box_around_ellipse(center, radii, degrees)
    else:
        corner, size = (pixels("x", width), pixels("y", height)), (pixels("width", width), pixels("height", height))
        box = _upright(corner, size, degrees)
    return {**row, "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]]}


def _upright(corner: tuple[float, float], size: tuple[float, float], degrees: float) -> Box:
    if not degrees:
        return corner[0], corner[1], corner[0] + size[0], corner[1] + size[1]
    return box_around_rectangle(turned(corner, size, degrees), size, degrees)


def _points(given: Any, size: tuple[int, int], where: str) -> list[float]:
    pairs = given if isinstance(given, list) else []
    if len(pairs) < 3 or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise DataError(f"{where}: points: expected [[x, y], …] of at least three points, found {str(given)[:60]}")
    return [
        finite_number(value, f"{where}: points") * side / 100
        for pair in pairs
        for value, side in zip(pair, size, strict=True)
    ]
