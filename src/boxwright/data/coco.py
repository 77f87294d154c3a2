"""COCO JSON: images, annotations with boxes, polygons or RLE masks, sparse category ids.

Files of annotation tools are read as such a file: CVAT's XML, Label Studio's tasks, FiftyOne's labels.
"""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, is_folder, read_file, refuse_unfinished, shown
from boxwright.data.coco_masks import check_mask_memory, decode_mask
from boxwright.data.cvat import read_cvat
from boxwright.data.dense_pose import coco_lists, coco_points
from boxwright.data.fiftyone import fiftyone_as_coco, is_fiftyone
from boxwright.data.image_io import read_image
from boxwright.data.label_studio import is_label_studio, label_studio_as_coco
from boxwright.data.lvis import searched_classes, with_file_names, with_frequencies
from boxwright.data.reading import checked_sample, finite_number, inside, reading, whole_number
from boxwright.ops.run_lengths import encode_mask
from boxwright.types import Categories, Category, Sample

# Roboflow's exports keep it in the folder of images.
ROBOFLOW_ANNOTATIONS = "_annotations.coco.json"

_LOG = logging.getLogger("boxwright")
# 18 digits fit in int64.
_DIGITS = re.compile("[0-9]{1,18}")


class CocoDataset:
    """Samples from a COCO annotation file.

    Labels follow the label map by class name if one is given; otherwise they number the file's categories in order of
    id. `categories` keeps the sparse ids.
    """

    def __init__(
        self,
        annotations: str | Path,
        image_folder: str | Path | None = None,
        categories: Categories | None = None,
        *,
        load_masks: bool = False,
        num_keypoints: int | None = 0,
        dense_pose: bool | None = False,
        track_ids: bool | None = False,
        allow_paths_outside: bool = False,
    ) -> None:
        """Read the annotation file.

        Args:
            num_keypoints: Keypoints per object, of all classes; 0 to skip them, None for as many as there are.
            dense_pose: Whether to read DensePose's points; None for if there are any.
            track_ids: Whether to read `track_id` of each annotation, as TAO's and other videos' files have it; None for
                if all annotations have one.
            image_folder: The folder that `file_name` is relative to; by default the annotation file's own, or `images`
                in it.
            allow_paths_outside: Whether a `file_name` may point outside the image folder.

        Raises:
            DataError: If the file is not COCO JSON, refers to missing images or categories, or has a category that is
                not in the label map.
        """
        self.path, self.name, self.load_masks = Path(annotations), str(annotations), load_masks
        self._allow_outside = allow_paths_outside
        refuse_unfinished(self.path.parent)
        content = with_file_names(_read(self.path, Path(image_folder) if image_folder else None))
        self._images = list(_list(content, "images", self.path))
        if not self._images:
            raise DataError(f"{self.path}: no images")
        self.folder = Path(image_folder) if image_folder else self._default_folder()
        rows = _without_superclass(_list(content, "categories", self.path), content.get("annotations"), self.path)
        self.categories = with_frequencies(categories or _categories(rows, self.path), rows, str(self.path))
        self._label_of = self._map_categories(rows)
        self._keypoint_indices = self._map_keypoints(rows, num_keypoints)
        self._annotations: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        known = {image["id"] for image in self._images}
        objects = _list(content, "annotations", self.path)
        self._dense_pose = any("dp_I" in one for one in objects) if dense_pose is None else dense_pose
        self._track_ids = all("track_id" in one for one in objects) if track_ids is None else track_ids
        for number, annotation in enumerate(objects):
            image = annotation.get("image_id")
            if image not in known:
                raise DataError(f"{self._where(annotation, number)}: image_id {image!r} is not among the images")
            if _id(annotation.get("category_id")) not in self._label_of:
                raise DataError(
                    f"{self._where(annotation, number)}: category_id {annotation.get('category_id')!r} "
                    "is not among the categories"
                )
            self._annotations[annotation["image_id"]].append(annotation)

    def _where(self, annotation: dict[str, Any], number: int = -1) -> str:
        name = annotation.get("id", f"number {number}" if number >= 0 else "without id")
        return f"{self.path}: annotation {str(name)[:60]}"

    def _default_folder(self) -> Path:
        first = str(self._images[0].get("file_name", ""))
        beside = self.path.parent
        return beside / "images" if not is_file(beside / first) and is_folder(beside / "images") else beside

    def _map_categories(self, rows: list[dict[str, Any]]) -> dict[int, int]:
        labels: dict[int, int] = {}
        for row in rows:
            number, found = _id(row["id"]), self.categories.by_name(row["name"])
            if number is None:
                raise DataError(f"{self.path}: category id {row['id']!r} is not a number")
            if found is None:
                known = ", ".join(item.name for item in self.categories)
                raise DataError(
                    f"{self.path}: category {row['name']!r} (id {number}) is not in the label map ({known})"
                )
            if number in labels:
                raise DataError(f"{self.path}: two categories have the id {number}")
            labels[number] = found.label
        return labels

    def _map_keypoints(self, rows: list[dict[str, Any]], wanted: int | None) -> dict[int, list[int]]:
        """Return by label where each keypoint in the file goes among those of all classes; empty to skip them."""
        found: dict[int, list[int]] = {}
        for row in rows if wanted != 0 else ():
            if not (names := _keypoint_names(row, self.path)):
                continue
            # The constructor checked the ids; `or 0` only excludes None for the type checker, here and below.
            category = self.categories.by_label(self._label_of[_id(row["id"]) or 0])
            ours = dict(zip(category.keypoints or names, category.keypoint_indices or range(len(names)), strict=True))
            if strange := next((name for name in names if name not in ours), None):
                raise DataError(f"{self.path}: category {row['name']!r}: keypoint {strange!r} is not in the label map")
            found[category.label] = [ours[name] for name in names]
        count = max((max(indices) + 1 for indices in found.values()), default=0)
        if wanted and count > wanted:
            raise DataError(f"{self.path}: its classes have {count} keypoints, but num_keypoints is {wanted}")
        # Classes that the file says nothing of may have more.
        of_map = [index + 1 for category in self.categories for index in category.keypoint_indices] if found else []
        self._num_keypoints = wanted or max([count, *of_map])
        return found

    def _keypoints(self, rows: list[dict[str, Any]]) -> NDArray[np.float32] | None:
        """Return the objects' keypoints [N, P, 3]; of those without, all are invisible."""
        if not self._num_keypoints:
            return None
        points = np.zeros((len(rows), self._num_keypoints, 3), np.float32)
        for into, annotation in zip(points, rows, strict=True):
            indices = self._keypoint_indices.get(self._label_of[_id(annotation["category_id"]) or 0], [])
            given = annotation.get("keypoints")
            if given is None or not indices:
                continue
            where = f"{self._where(annotation)}: keypoints"
            if not isinstance(given, list) or len(given) != 3 * len(indices):
                count = len(given) if isinstance(given, list) else str(given)[:60]
                raise DataError(f"{where}: expected x, y, v of {len(indices)} keypoints, found {count}")
            values = np.array([finite_number(value, where) for value in given]).reshape(-1, 3)
            # 1 is labeled but occluded, 2 visible: both have a place.
            with np.errstate(over="ignore"):  # `checked_sample` refuses what is infinite
                into[indices] = np.concatenate([values[:, :2], values[:, 2:] > 0], 1)
        return points

    def _surface_points(self, rows: list[dict[str, Any]], where: str) -> NDArray[np.float32]:
        return coco_points([(row, self._where(row)) for row in rows]).padded(where)

    def _tracks(self, rows: list[dict[str, Any]]) -> NDArray[np.int64]:
        values = [whole_number(row.get("track_id"), f"{self._where(row)}: track_id") for row in rows]
        return np.array(values, np.int64)

    def _box(self, annotation: dict[str, Any]) -> list[float]:
        box = annotation.get("bbox")
        if not isinstance(box, list) or len(box) != 4:
            raise DataError(f"{self._where(annotation)}: expected bbox [x, y, width, height], found {str(box)[:60]}")
        return [finite_number(value, f"{self._where(annotation)}: bbox") for value in box]

    def _flag(self, annotation: dict[str, Any], name: str) -> bool:
        return bool(finite_number(annotation.get(name) or 0, f"{self._where(annotation)}: {name}"))

    def _area(self, annotation: dict[str, Any], box: list[float]) -> float:
        if annotation.get("area") is None:
            # As pycocotools does for results that have boxes alone; usually it is the area of the mask.
            return box[2] * box[3]
        return finite_number(annotation["area"], f"{self._where(annotation)}: area")

    def __len__(self) -> int:
        return len(self._images)

    def _image_path(self, index: int) -> Path:
        row = self._images[index]
        if not row.get("file_name"):
            raise DataError(f"{self.path}: image {row['id']} has no file_name")
        where = f"{self.path}: image {str(row['id'])[:60]}: file_name"
        return inside(self.folder, str(row["file_name"]), where, allow_outside=self._allow_outside)

    def _declared(self, row: dict[str, Any]) -> tuple[int, int] | None:
        if not row.get("height") or not row.get("width"):
            return None
        where = f"{self.path}: image {str(row['id'])[:60]}"
        return whole_number(row["height"], f"{where}: height"), whole_number(row["width"], f"{where}: width")

    def __getitem__(self, index: int) -> Sample:
        """Return one sample; its id is the image's id in the file."""
        row = self._images[index]
        with reading(self._where_of(row)):
            return self._sample(row, read_image(self._image_path(index), declared=self._declared(row)))

    def truth(self, index: int) -> Sample:
        """Return one sample without reading its image: [H, W, 0] of the size that the file declares."""
        row = self._images[index]
        declared = self._declared(row)
        if declared is None:
            raise DataError(f"{self._where_of(row)}: expected its height and width")
        return self._sample(row, np.zeros((*declared, 0), np.uint8))

    def rows(self, index: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return an image's row in the file, and its annotations in the order of the sample's objects."""
        row = self._images[index]
        return row, self._annotations[row["id"]]

    def _where_of(self, row: dict[str, Any]) -> str:
        return f"{self.path}: image {str(row['id'])[:60]}"

    def _sample(self, row: dict[str, Any], image: NDArray[np.uint8]) -> Sample:
        where = self._where_of(row)
        with reading(where):
            rows = self._annotations[row["id"]]
            given = [self._box(annotation) for annotation in rows]
            boxes = np.array(given, np.float64).reshape(-1, 4)
            # In float64, so that a conversion to corners and back returns the same numbers.
            boxes[:, 2:] += boxes[:, :2]
            attributes, names = self._attributes(rows)
            sample = Sample(
                image=image,
                boxes=boxes.astype(np.float32),
                labels=np.array([self._label_of[_id(a["category_id"]) or 0] for a in rows], np.int64),
                difficult=np.array([self._flag(a, "difficult") for a in rows], np.bool_),
                is_crowd=np.array([self._flag(a, "iscrowd") for a in rows], np.bool_),
                areas=np.array([self._area(a, box) for a, box in zip(rows, given, strict=True)], np.float32),
                masks=self._masks(rows, image.shape[:2]) if self.load_masks else None,
                keypoints=self._keypoints(rows),
                dense_pose=self._surface_points(rows, where) if self._dense_pose else None,
                track_ids=self._tracks(rows) if self._track_ids else None,
                attributes=attributes,
                attribute_names=names,
                id=str(row["id"]),
                filename=str(row["file_name"]),
                **searched_classes(row, self._label_of, where),
            )
            return checked_sample(sample, where)

    def _attributes(self, rows: list[dict[str, Any]]) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
        """Return the integer `attributes` that all objects have, int64 [N, T], and their T names."""
        given = [row["attributes"] for row in rows if isinstance(row.get("attributes"), dict)]
        if not rows or len(given) < len(rows):
            return None, ()
        # Other values, such as text, have no place in the integer columns of a sample.
        whole = [{str(name) for name, value in one.items() if _is_whole(value)} for one in given]
        names = sorted(set.intersection(*whole))
        values = np.array([[one[name] for name in names] for one in given], np.int64)
        return (values, tuple(names)) if names else (None, ())

    def _masks(self, rows: list[dict[str, Any]], size: tuple[int, int]) -> NDArray[np.uint8]:
        check_mask_memory(len(rows), size, str(self.path))
        masks = np.zeros((len(rows), *size), np.uint8)
        for number, annotation in enumerate(rows):
            where, segmentation = self._where(annotation), annotation.get("segmentation")
            if not segmentation:
                raise DataError(f"{where} has no segmentation")
            masks[number] = decode_mask(segmentation, size, where)
        return masks

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the image file's bytes and its name."""
        path = self._image_path(index)
        return read_file(path), path.name


def _id(value: object) -> int | None:
    """Return an id that is a number, or text that spells one; None otherwise."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else None


def _read(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return the content of a COCO file, or of an annotation tool's as that of a COCO file."""
    if path.suffix.lower() == ".xml":
        return read_cvat(path)
    content = _json(path)
    if is_label_studio(content):
        return label_studio_as_coco(content, path, image_folder)
    if is_fiftyone(content):
        return fiftyone_as_coco(content, path, image_folder)
    if not isinstance(content, dict):
        raise DataError(
            f"{shown(path)}: expected an object with images, annotations and categories, "
            f"found a {type(content).__name__}"
        )
    return content


def _json(path: Path) -> Any:
    try:
        return json.loads(read_file(path).decode())
    except (
        ValueError,
        RecursionError,
    ) as error:  # ValueError: not JSON, not UTF-8, or an integer of thousands of digits
        raise DataError(f"{shown(path)}: not JSON: {str(error)[:200]}") from None


def _list(content: dict[str, Any], key: str, path: Path) -> list[dict[str, Any]]:
    rows = content.get(key)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        keys = ", ".join(map(str, content))[:200]
        raise DataError(f"{path}: expected a list of objects under {key!r}; keys are {keys}")
    needed: tuple[tuple[str, type], ...] = {
        "images": (("id", object), ("file_name", str)),
        "categories": (("id", object), ("name", str)),
        "annotations": (),
    }[key]
    for number, row in enumerate(rows):
        for name, kind in needed:
            if name not in row:
                raise DataError(f"{path}: {key}[{number}] has no {name}")
            if not isinstance(row[name], kind):
                raise DataError(f"{path}: {key}[{number}].{name}: expected text, found {repr(row[name])[:60]}")
        for name in ("id", "image_id", "category_id"):
            if not isinstance(row.get(name, 0), int | str):
                raise DataError(f"{path}: {key}[{number}].{name}: expected a number, found {repr(row[name])[:60]}")
    if key == "images" and len({row["id"] for row in rows}) < len(rows):
        raise DataError(f"{path}: two images have the same id")
    return rows


def _without_superclass(rows: list[dict[str, Any]], annotations: Any, path: Path) -> list[dict[str, Any]]:
    """Drop category 0 of Roboflow's exports: a supercategory of the others that no object has."""
    objects = annotations if isinstance(annotations, list) else []
    used = any(isinstance(one, dict) and one.get("category_id") == 0 for one in objects)
    above = [row.get("supercategory") for row in rows if row.get("id") != 0]
    kept = [row for row in rows if used or row.get("id") != 0 or row.get("name") not in above]
    for row in (row for row in rows if row not in kept):
        _LOG.warning(
            "%s: ignoring category 0, %r: it is the supercategory of the others, and no object has it",
            path,
            row["name"],
        )
    return kept


def _categories(rows: list[dict[str, Any]], path: Path) -> Categories:
    # Labels follow the ids' order, not the file's, so that two files of one data set agree.
    numbers = [_id(row["id"]) for row in rows]
    if None in numbers:
        raise DataError(f"{path}: category id {rows[numbers.index(None)]['id']!r} is not a number")
    ordered = sorted(zip(numbers, rows, strict=True), key=lambda pair: pair[0] or 0)
    try:
        return Categories(
            tuple(
                Category(n, number or 0, row["name"], keypoints=_keypoint_names(row, path))
                for n, (number, row) in enumerate(ordered)
            )
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _keypoint_names(row: dict[str, Any], path: Path) -> tuple[str, ...]:
    names = row.get("keypoints") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path}: category {row['name']!r}: keypoints: expected names, found {str(names)[:60]}")
    return tuple(names)


def coco_category(category: Category) -> dict[str, Any]:
    """Return a class as a COCO category."""
    row: dict[str, Any] = {"id": category.id, "name": category.name}
    row |= {"keypoints": [*category.keypoints]} if category.keypoints else {}
    return row | ({"frequency": category.frequency} if category.frequency else {})


def _is_whole(value: object) -> bool:
    """Return whether a value is an integer of at most 64 bits."""
    return isinstance(value, int) and -(2**63) <= value < 2**63


def coco_annotation(sample: Sample, number: int, category: Category) -> dict[str, Any]:
    """Return one object as a COCO annotation without its id, coordinates rounded to 1/1000 pixel.

    `segmentation` is present if there is a mask, `keypoints` if the class names them, DensePose's lists and `track_id`
    if they were read; `difficult` and `attributes` are extensions, present if set.
    """
    x_min, y_min, x_max, y_max = (round(float(value), 3) for value in sample.boxes[number])
    row: dict[str, Any] = {
        "category_id": category.id,
        "bbox": [x_min, y_min, round(x_max - x_min, 3), round(y_max - y_min, 3)],
        "area": round(float(sample.areas[number]), 3),
        "iscrowd": int(sample.is_crowd[number]),
    }
    if sample.difficult[number]:
        row["difficult"] = 1
    if sample.attributes is not None:
        row["attributes"] = dict(zip(sample.attribute_names, sample.attributes[number].tolist(), strict=True))
    if sample.masks is not None:
        row["segmentation"] = encode_mask(sample.masks[number])
    if sample.track_ids is not None:
        row["track_id"] = int(sample.track_ids[number])
    if sample.dense_pose is not None and (sample.boxes[number, 2:] > sample.boxes[number, :2]).all():
        row |= coco_lists(sample.dense_pose[number], sample.boxes[number])
    if sample.keypoints is not None and category.keypoints:
        points = sample.keypoints[number, list(category.keypoint_indices)]
        # Reading makes COCO's 1 (occluded) and 2 (visible) equal, so that 2 is written; unlabeled points are 0, 0, 0.
        visible = points[:, 2] > 0
        places = np.where(visible[:, None], points[:, :2].astype(np.float64).round(3), 0)
        row["keypoints"] = np.concatenate([places, 2 * visible[:, None]], 1).flatten().tolist()
        row["num_keypoints"] = int(visible.sum())
    return row
