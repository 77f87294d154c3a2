"""COCO's JSON: images, annotations with boxes, polygons or RLE masks, sparse category ids."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from boxwright.data.image_io import read_image
from boxwright.errors import DataError
from boxwright.types import Categories, Category, Sample

__all__ = ["CocoDataset", "coco_annotation"]


class CocoDataset:
    """Samples from an annotation file in COCO's form.

    Labels follow the label map by class name where one is given; else they number the file's
    categories in order of id. The sparse ids stay in `categories`.
    """

    def __init__(
        self,
        annotations: str | Path,
        image_folder: str | Path | None = None,
        categories: Categories | None = None,
        *,
        load_masks: bool = False,
    ) -> None:
        """Read the annotation file.

        Args:
            annotations: The JSON file.
            image_folder: The folder that `file_name` is relative to; without, the annotation
                file's own, or `images` beside it.
            categories: A label map.
            load_masks: Whether samples carry masks.

        Raises:
            DataError: Where the file is not COCO's JSON, refers to images or categories that it
                does not have, or has a category that the label map lacks.
        """
        self.path, self.name, self.load_masks = Path(annotations), str(annotations), load_masks
        content = _read_json(self.path)
        self._images = list(_list(content, "images", self.path))
        if not self._images:
            raise DataError(f"{self.path}: no images")
        self.folder = Path(image_folder) if image_folder else self._default_folder()
        rows = _list(content, "categories", self.path)
        self.categories = categories or _categories(rows, self.path)
        self._label_of = self._map_categories(rows)
        self._annotations: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        known = {image["id"] for image in self._images}
        for number, annotation in enumerate(_list(content, "annotations", self.path)):
            self._check(annotation, number, known)
            self._annotations[annotation["image_id"]].append(annotation)

    def _default_folder(self) -> Path:
        first = str(self._images[0].get("file_name", ""))
        beside = self.path.parent
        return beside / "images" if not (beside / first).is_file() and (beside / "images").is_dir() else beside

    def _map_categories(self, rows: list[dict[str, Any]]) -> dict[int, int]:
        labels = {}
        for row in rows:
            found = self.categories.by_name(row["name"])
            if found is None:
                known = ", ".join(item.name for item in self.categories)
                raise DataError(
                    f"{self.path}: category {row['name']!r} (id {row['id']}) is not in the label map ({known})"
                )
            labels[int(row["id"])] = found.label
        return labels

    def _check(self, annotation: dict[str, Any], number: int, images: set[Any]) -> None:
        where = f"{self.path}: annotation {annotation.get('id', f'number {number}')}"
        box = annotation.get("bbox")
        if not isinstance(box, list) or len(box) != 4 or not all(isinstance(v, int | float) for v in box):
            raise DataError(f"{where}: expected bbox [x, y, width, height], found {box!r}")
        if not np.isfinite(box).all():
            raise DataError(f"{where}: bbox {box} is not finite")
        if annotation.get("image_id") not in images:
            raise DataError(f"{where}: image_id {annotation.get('image_id')!r} is not among the images")
        if annotation.get("category_id") not in self._label_of:
            raise DataError(f"{where}: category_id {annotation.get('category_id')!r} is not among the categories")

    @property
    def parts(self) -> tuple[int, ...]:
        """How many samples each source has; they follow one another."""
        return (len(self),)

    def __len__(self) -> int:
        return len(self._images)

    def _image_path(self, index: int) -> Path:
        row = self._images[index]
        if not row.get("file_name"):
            raise DataError(f"{self.path}: image {row['id']} has no file_name")
        return self.folder / str(row["file_name"])

    def __getitem__(self, index: int) -> Sample:
        """Read one sample.

        Args:
            index: From 0, in the order of the file.

        Returns:
            The sample; its id is the image's id in the file.

        Raises:
            DataError: Where the image cannot be read or a mask cannot be decoded.
        """
        row = self._images[index]
        declared = (int(row["height"]), int(row["width"])) if row.get("height") and row.get("width") else None
        image = read_image(self._image_path(index), declared=declared)
        rows = self._annotations[row["id"]]
        boxes = np.array([annotation["bbox"] for annotation in rows], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        areas = [float(a["area"]) if a.get("area") is not None else a["bbox"][2] * a["bbox"][3] for a in rows]
        return Sample(
            image=image,
            boxes=boxes.astype(np.float32),
            labels=np.array([self._label_of[a["category_id"]] for a in rows], np.int64),
            difficult=np.array([bool(a.get("difficult", 0)) for a in rows], np.bool_),
            is_crowd=np.array([bool(a.get("iscrowd", 0)) for a in rows], np.bool_),
            areas=np.array(areas, np.float32),
            masks=self._masks(rows, image.shape[:2]) if self.load_masks else None,
            id=str(row["id"]),
            filename=str(row["file_name"]),
        )

    def _masks(self, rows: list[dict[str, Any]], size: tuple[int, int]) -> NDArray[np.uint8]:
        masks = np.zeros((len(rows), *size), np.uint8)
        for number, annotation in enumerate(rows):
            segmentation = annotation.get("segmentation")
            if not segmentation:
                raise DataError(f"{self.path}: annotation {annotation.get('id')} has no segmentation")
            try:
                masks[number] = _decode_mask(segmentation, size)
            except Exception as error:  # noqa: BLE001  # pycocotools raises plain Exceptions
                raise DataError(
                    f"{self.path}: annotation {annotation.get('id')}: segmentation cannot be decoded: {error}"
                ) from None
        return masks

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Read one image as it is stored.

        Args:
            index: From 0.

        Returns:
            The image file's bytes and its name.
        """
        path = self._image_path(index)
        return path.read_bytes(), path.name


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise DataError(
            f"{path}: expected an object with images, annotations and categories, found a {type(content).__name__}"
        )
    return content


def _list(content: dict[str, Any], key: str, path: Path) -> list[dict[str, Any]]:
    rows = content.get(key)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: expected a list of objects under {key!r}; keys are {', '.join(map(str, content))}")
    needed = {"images": ("id", "file_name"), "categories": ("id", "name"), "annotations": ()}[key]
    for number, row in enumerate(rows):
        missing = [name for name in needed if name not in row]
        if missing:
            raise DataError(f"{path}: {key}[{number}] has no {missing[0]}")
        for name in ("id", "image_id", "category_id"):
            if not isinstance(row.get(name, 0), int | str):
                raise DataError(f"{path}: {key}[{number}].{name}: expected a number, found {row[name]!r}")
    if key == "images" and len({row["id"] for row in rows}) < len(rows):
        raise DataError(f"{path}: two images have the same id")
    return rows


def _categories(rows: list[dict[str, Any]], path: Path) -> Categories:
    try:
        bad = next((row["id"] for row in rows if not str(row["id"]).isdigit()), None)
        if bad is not None:
            raise DataError(f"category id {bad!r} is not a number")
        ordered = sorted(rows, key=lambda row: int(row["id"]))
        return Categories(tuple(Category(n, int(row["id"]), str(row["name"])) for n, row in enumerate(ordered)))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _decode_mask(segmentation: Any, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Decode polygons, or run lengths packed (a string) or not (a list)."""
    if isinstance(segmentation, list):
        codes = coco_mask.merge(coco_mask.frPyObjects(segmentation, *size))
    elif isinstance(segmentation["counts"], list):
        codes = coco_mask.frPyObjects(segmentation, *segmentation["size"])
    else:
        codes = segmentation
    mask = np.asarray(coco_mask.decode(codes), np.uint8)
    if mask.shape != size:
        raise ValueError(f"the mask is {mask.shape[0]}×{mask.shape[1]}, the image {size[0]}×{size[1]}")
    return mask


def coco_annotation(sample: Sample, number: int, category_id: int) -> dict[str, Any]:
    """Describe one object as COCO does, without its id. Coordinates are kept to 1/1000 pixel.

    Args:
        sample: The sample.
        number: The object's index in it.
        category_id: The id of its class.

    Returns:
        `category_id`, `bbox`, `area`, `iscrowd`; `segmentation` where there is a mask, and
        `difficult` (an extension) where it is set.
    """
    x_min, y_min, x_max, y_max = (round(float(value), 3) for value in sample.boxes[number])
    row: dict[str, Any] = {
        "category_id": category_id,
        "bbox": [x_min, y_min, round(x_max - x_min, 3), round(y_max - y_min, 3)],
        "area": round(float(sample.areas[number]), 3),
        "iscrowd": int(sample.is_crowd[number]),
    }
    if sample.difficult[number]:
        row["difficult"] = 1
    if sample.masks is not None:
        code = coco_mask.encode(np.asfortranarray(sample.masks[number]))
        row["segmentation"] = {"size": list(map(int, code["size"])), "counts": code["counts"].decode()}
    return row
