"""The content of a COCO file, checked: images, classes and annotations with their ids as programs write them.

Ids are whole numbers or text. 1.0, as tables write it, is 1; an annotation's "1" means the image 1 where no other image
is meant. Coordinates in another unit, or of pictures of another size, are turned into COCO's.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.base.errors import DataError
from boxwright.base.text import is_count
from boxwright.data.image_io import ImageHeader
from boxwright.data.picture_dataset import BoxesAre, Size
from boxwright.data.reading import UNKNOWN_CLASS, Notices
from boxwright.types import Categories, Category, Sample
from boxwright.types.categories import FREQUENCIES, ids


@dataclass(frozen=True)
class CocoUnits:
    """What the numbers of a file are.

    Attributes:
        boxes_are: The four numbers of `bbox`; shares of the picture also stand for keypoints and polygons.
        rescale: Whether pixels are those of a picture of the declared size, and the picture has another one now.
    """

    boxes_are: BoxesAre = "xywh"
    rescale: bool = False

    def __post_init__(self) -> None:
        if self.rescale and self.boxes_are.startswith("normalized"):
            raise DataError("shares of a picture need no rescaling: choose normalized boxes, or rescale")

    @property
    def are_usual(self) -> bool:
        """Whether the file is as COCO's are."""
        return self.boxes_are == "xywh" and not self.rescale

    def in_pixels(self, row: dict[str, Any], box: list[float], size: Size, declared: Size | None) -> dict[str, Any]:
        """Return an annotation in pixels of its picture, its box as x, y, width, height.

        Args:
            row: The annotation.
            box: Its four numbers.
            size: (height, width) of the picture as it is read.
            declared: (height, width) in the file.
        """
        x, y = self._factors(size, declared)
        first, second, third, fourth = box[0] * x, box[1] * y, box[2] * x, box[3] * y
        corners = self.boxes_are.endswith("xyxy")
        # Sizes that stood for corners have had the first corner taken from them.
        sign = -1 if corners else 1 if self.boxes_are == "sizes" else 0
        changed = {**row, "bbox": [first, second, third + sign * first, fourth + sign * second]}
        if self.boxes_are == "xywh" and row.get("area") is not None:
            changed["area"] = row["area"] * x * y
        else:
            # A tool that writes other boxes may compute the area from them as if they were COCO's.
            changed.pop("area", None)
        if isinstance(row.get("keypoints"), list):
            factors = (x, y, 1)
            changed["keypoints"] = [value * factors[n % 3] for n, value in enumerate(row["keypoints"])]
        if isinstance(row.get("segmentation"), list):
            changed["segmentation"] = [
                [value * (y if n % 2 else x) for n, value in enumerate(polygon)] for polygon in row["segmentation"]
            ]
        return changed

    def _factors(self, size: Size, declared: Size | None) -> tuple[float, float]:
        if self.boxes_are.startswith("normalized"):
            return size[1], size[0]
        if not self.rescale or declared is None:
            return 1.0, 1.0
        return size[1] / declared[1], size[0] / declared[0]

    def size_meant(self, header: ImageHeader, declared: Size | None) -> Size | None:
        """Return the declared size; of a resized picture, the size that the declared one has become.

        It is that of the stored or of the upright picture, whichever has the proportions of the declared size.
        """
        if not self.rescale or declared is None:
            return declared
        wanted = math.log(declared[0] / declared[1])
        candidates = (header.size, header.size[::-1]) if header.orientation >= 5 else (header.size,)
        distances = [abs(math.log(height / width) - wanted) for height, width in candidates]
        # Both are as far from a square as from each other: nothing shows which is meant.
        if len(distances) > 1 and math.isclose(*distances):
            return None
        return candidates[distances.index(min(distances))]


Row = dict[str, Any]
# What tools write for an image without objects, besides an empty list.
_NO_BOX = ([0, 0, 0, 0], [-1, -1, -1, -1])


def read_rows(content: Row, key: str, path: Path) -> list[Row]:
    """Return the list of objects under a key.

    Raises:
        DataError: If there is none.
    """
    rows = content.get(key)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        keys = ", ".join(map(str, content))[:200]
        hint = '; add [{"id": 1, "name": "…"}, …], as annotations have numbers alone' if key == "categories" else ""
        raise DataError(f"{path}: expected a list of objects under {key!r}; keys are {keys}{hint}")
    return rows


def image_rows(content: Row, path: Path) -> list[Row]:
    """Return the images, with ids that are numbers or text.

    Raises:
        DataError: If there are none, one lacks an id or a name, or two have the same id.
    """
    rows = read_rows(content, "images", path)
    if not rows:
        raise DataError(f"{path}: no images")
    rows = [_checked(row, "file_name", f"{path}: images[{number}]") for number, row in enumerate(rows)]
    if len({row["id"] for row in rows}) < len(rows):
        raise DataError(f"{path}: two images have the same id")
    return rows


def category_rows(content: Row, path: Path, notices: Notices) -> list[Row]:
    """Return the categories in the order of their ids, which are numbers.

    Roboflow's exports begin with a category 0, a supercategory of the others that no object has: it is dropped.

    Raises:
        DataError: If one lacks a name or a number of its own.
    """
    rows = [
        _checked(row, "name", f"{path}: categories[{number}]")
        for number, row in enumerate(read_rows(content, "categories", path))
    ]
    for row in rows:
        if (number := category_number(row["id"])) is None:
            raise DataError(f"{path}: category id {row['id']!r} is not a number")
        row["id"] = number
    twice, count = Counter(row["id"] for row in rows).most_common(1)[0] if rows else (0, 0)
    if count > 1:
        raise DataError(f"{path}: two categories have the id {twice}")
    kept = _without_superclass(rows, content, notices)
    # Labels follow the ids' order, not the file's, so that two files of one data set agree.
    return sorted(kept, key=lambda row: row["id"])


def _checked(row: Row, name: str, where: str) -> Row:
    for key in ("id", name):
        if key not in row:
            raise DataError(f"{where} has no {key}")
    if not isinstance(row[name], str):
        raise DataError(f"{where}.{name}: expected text, found {repr(row[name])[:60]}")
    number = _plain_id(row["id"])
    if number is None:
        raise DataError(f"{where}.id: expected a number, found {repr(row['id'])[:60]}")
    return {**row, "id": number}


def _plain_id(value: object) -> int | str | None:
    """Return an id as a number or text; None if it is neither."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def category_number(value: object) -> int | None:
    """Return an id that is a whole number, or text that spells one; None otherwise."""
    number = _plain_id(value)
    return number if number is None or isinstance(number, int) else _spelled(number)


def _spelled(text: str) -> int | None:
    return int(text) if is_count(text) else None


def _without_superclass(rows: list[Row], content: Row, notices: Notices) -> list[Row]:
    objects = content.get("annotations")
    numbers = {category_number(item.get("category_id")) for item in objects or () if isinstance(item, dict)}
    above = {row.get("supercategory") for row in rows if row["id"] != 0}
    extra = [row for row in rows if row["id"] == 0 and 0 not in numbers and row["name"] in above]
    for row in extra:
        notices.assumed.add("category 0 left out, which is the supercategory of the others", row["name"])
    return [row for row in rows if row not in extra]


def plain_name(name: str) -> str:
    """Return a class's name without spaces around it, in the usual form of Unicode."""
    return unicodedata.normalize("NFC", name).strip()


def read_classes(rows: Sequence[Row], path: Path, notices: Notices) -> Categories:
    """Return a file's classes, in the order of ids; categories of one name are one class, which has the smallest id.

    Names that differ in spaces around them or in Unicode's form are the same; one that is alone stays as it is written.

    Raises:
        DataError: If there are none.
    """
    of_name: dict[str, list[Row]] = {}
    for row in rows:
        of_name.setdefault(plain_name(row["name"]), []).append(row)
    categories = []
    for label, (name, same) in enumerate(of_name.items()):
        first, *others = same
        for row in others:
            example = f"{name}: {first['id']} and {row['id']}"
            notices.assumed.add("categories that have the name of another, read as one class", example)
        shown_name = name if others else first["name"]
        categories.append(Category(label, first["id"], shown_name, keypoints=keypoint_names(first, path)))
    try:
        return Categories(tuple(categories))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def labels_by_category(rows: Sequence[Row], categories: Categories, where: object) -> dict[int, int]:
    """Return by category id the label of the class of that name; nothing for those that the label map lacks.

    Raises:
        DataError: If it lacks all of them.
    """
    of_plain = {plain_name(item.name): item for item in categories}
    labels: dict[int, int] = {}
    for row in rows:
        category = categories.by_name(row["name"]) or of_plain.get(plain_name(row["name"]))
        if category is not None:
            labels[row["id"]] = category.label
    if rows and not labels:
        listed, mapped = (
            ", ".join(names)[:200] for names in ([row["name"] for row in rows], [c.name for c in categories])
        )
        raise DataError(f"{where}: none of its classes ({listed}) is in the label map ({mapped})")
    return labels


def keypoint_names(row: Row, path: Path) -> tuple[str, ...]:
    """Return the names of a category's keypoints; empty if it has none.

    Raises:
        DataError: If they are not a list of names.
    """
    names = row.get("keypoints") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path}: category {row['name']!r}: keypoints: expected names, found {str(names)[:60]}")
    return tuple(names)


@dataclass(frozen=True)
class Annotations:
    """The annotations of a file that are objects.

    Attributes:
        of_image: By the image's id.
        left_out: By the image's id, the number of those of classes that the label map lacks.
    """

    of_image: dict[int | str, list[Row]]
    left_out: Counter[int | str]


def annotations_by_image(
    rows: Sequence[Row],
    images: Sequence[Row],
    categories: tuple[Mapping[int, str], Collection[int]],
    path: Path,
    notices: Notices,
) -> Annotations:
    """Return the annotations by their images; those that are no objects, or of no image, are counted in `notices`.

    Args:
        categories: Names of all by id, and the ids of those that have a label.

    Raises:
        DataError: For an object of an unknown category, or if most annotations are of images that are not in the file.
    """
    known, finder = {row["id"] for row in images}, _ImageIds(images)
    kept = Annotations({}, Counter())
    orphans, (ids, labeled) = 0, categories
    for number, row in enumerate(rows):
        given = row.get("image_id")
        image = given if isinstance(given, int | str) and given in known else finder.find(given)
        if image is None:
            orphans += 1
            _check_orphans(orphans, row, number, len(rows), path)
            notices.boxes.add("of images that are not in the file", annotation_name(row, number))
            continue
        if image != given:
            notices.assumed.add("annotations that spell their image's id in another way", f"{given!r} for {image!r}")
        category = category_number(row.get("category_id"))
        if _has_no_box(row) or ((category is None or category not in ids) and _is_flat(row)):
            notices.boxes.add("without a box", annotation_name(row, number))
        elif category is None or category not in ids:
            raise DataError(
                f"{path}: {annotation_name(row, number)}: category_id {repr(row.get('category_id'))[:60]} "
                "is not among the categories"
            )
        elif category not in labeled:
            kept.left_out[image] += 1
            notices.boxes.add(UNKNOWN_CLASS, ids[category])
        else:
            kept.of_image.setdefault(image, []).append(row)
    return kept


def annotation_name(row: Row, number: int = -1) -> str:
    """Return what an annotation is called in messages: by its id, or else its place in the file."""
    return f"annotation {str(row.get('id', f'number {number}' if number >= 0 else 'without id'))[:60]}"


def _check_orphans(orphans: int, row: Row, number: int, count: int, path: Path) -> None:
    if 2 * orphans > count:
        raise DataError(
            f"{path}: {annotation_name(row, number)}: image_id {str(row.get('image_id'))[:60]} is not among the "
            f"images, nor are those of most of the {count} annotations"
        )


def _has_no_box(row: Row) -> bool:
    """Return whether an annotation only says that its image has no object."""
    box = row.get("bbox")
    if box is None or box == []:
        outline = row.get("segmentation")
        return not (any(outline) if isinstance(outline, list) else outline)
    return box in _NO_BOX


def _is_flat(row: Row) -> bool:
    """Return whether an annotation's box has no width or no height."""
    box = row.get("bbox")
    sides = box[2:] if isinstance(box, list) and len(box) == 4 else ()
    return any(isinstance(side, int | float) and (side <= 0 or math.isnan(side)) for side in sides)


class _ImageIds:
    """The ids of images by what they spell: 7, "7" and "000007" are the same id where only one image has it."""

    def __init__(self, images: Sequence[Row]) -> None:
        spelled: dict[int, list[int | str]] = defaultdict(list)
        for row in images:
            if (number := category_number(row["id"])) is not None:
                spelled[number].append(row["id"])
        self._id_by_number = {number: ids[0] for number, ids in spelled.items() if len(ids) == 1}

    def find(self, value: object) -> int | str | None:
        """Return the id of the image that an annotation means, or None."""
        number = category_number(value)
        return None if number is None else self._id_by_number.get(number)


# LVIS's names of the lists, and the sample's.
_LISTS = {"neg_category_ids": "negative_labels", "not_exhaustive_category_ids": "not_exhaustive_labels"}


def with_file_names(content: dict[str, Any]) -> dict[str, Any]:
    """Return a file's content in which images without `file_name` have the end of their `coco_url`, folder and file."""
    images = content.get("images")
    if not isinstance(images, list):
        return content
    return {**content, "images": [_named(row) for row in images]}


def _named(row: Any) -> Any:
    if not isinstance(row, dict) or "file_name" in row or not isinstance(row.get("coco_url"), str):
        return row
    return {**row, "file_name": "/".join(row["coco_url"].split("/")[-2:])}


def with_frequencies(
    categories: Categories, rows: Sequence[dict[str, Any]], label_of: Mapping[int, int], where: str
) -> Categories:
    """Return the classes with the frequencies of a file's categories, where they have none.

    Args:
        rows: The file's categories.
        label_of: Their labels, by id.
        where: The file, for errors.

    Raises:
        DataError: For one that is none of r, c and f.
    """
    given: dict[int, str] = {}
    for row in (row for row in rows if "frequency" in row):
        if row["frequency"] not in FREQUENCIES:
            value = str(row["frequency"])[:60]
            raise DataError(f"{where}: category {row['name']!r}: frequency: expected r, c or f, found {value!r}")
        given.setdefault(label_of[row["id"]], row["frequency"])
    return Categories(
        tuple(replace(item, frequency=item.frequency or given.get(item.label, "")) for item in categories)
    )


def searched_classes(
    row: dict[str, Any], label_of: Mapping[int, int], known: Collection[int], where: str
) -> dict[str, Any]:
    """Return the fields of a sample that an image's lists of classes give: int64 arrays by name.

    Args:
        row: The image's.
        label_of: Labels by the ids of categories.
        known: Ids of all categories; those without a label are left out.
        where: The image, for errors.

    Raises:
        DataError: If a list is none of ids of categories.
    """
    fields: dict[str, Any] = {}
    for key, name in _LISTS.items():
        given = row.get(key) or []
        if not isinstance(given, list) or not all(
            isinstance(number, int | float) and number in known for number in given
        ):
            raise DataError(f"{where}: {key}: expected ids of categories, found {str(given)[:60]}")
        fields[name] = np.array(sorted({label_of[number] for number in given if number in label_of}), np.int64)
    return fields


def searched_lists(sample: Sample, categories: Categories) -> dict[str, list[int]]:
    """Return the lists of an image for a COCO file; nothing if it has none."""
    lists = {key: ids(categories, getattr(sample, name).tolist()) for key, name in _LISTS.items()}
    return lists if any(lists.values()) else {}
