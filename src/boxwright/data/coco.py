"""COCO JSON: images, annotations with boxes, polygons or RLE masks, sparse category ids.

Files of annotation tools are read as such a file: CVAT's XML, Label Studio's tasks, FiftyOne's labels.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, is_folder, refuse_unfinished, shown
from boxwright.base.remote import folder_of, is_remote, readable_copy
from boxwright.data.coco_content import (
    CocoUnits,
    annotation_name,
    annotations_by_image,
    category_number,
    category_rows,
    image_rows,
    keypoint_names,
    labels_by_category,
    plain_name,
    read_classes,
    read_rows,
    searched_classes,
    with_file_names,
    with_frequencies,
)
from boxwright.data.coco_masks import check_mask_memory, decode_mask
from boxwright.data.coco_table import CocoTable, PackedJson, kept_table
from boxwright.data.cvat import read_cvat
from boxwright.data.dense_pose import coco_lists, coco_points
from boxwright.data.image_io import read_header
from boxwright.data.layouts.content import containing_folder
from boxwright.data.layouts.table import LAYOUTS, Layout, find_layout
from boxwright.data.picture_dataset import BoxesAre, LocatedPictures, PictureDataset, RemotePictures
from boxwright.data.picture_files import PictureFiles, parts_of_name, pictures_in
from boxwright.data.reading import (
    Notices,
    checked_sample,
    finite_number,
    read_json,
    read_keypoints,
    reading,
    whole_number,
)
from boxwright.nn.ops.pasted_masks import encode_mask
from boxwright.types import Categories, Category, Sample

# Roboflow's exports keep it in the folder of images.
ROBOFLOW_ANNOTATIONS = "_annotations.coco.json"
# So many images show which folder is theirs, even where one is missing.
_FIRST = 20


# What boxes may be in COCO's own files, and in other layouts, whose corners have been turned into sizes.
_OF_COCO: tuple[BoxesAre, ...] = ("xywh", "xyxy", "normalized_xywh", "normalized_xyxy")
_OF_LAYOUTS: tuple[BoxesAre, ...] = ("xywh", "normalized_xywh", "sizes")


class CocoDataset(PictureDataset):
    """Samples from a COCO annotation file; a sample's id is the image's id in the file.

    Labels follow the label map by class name if one is given; otherwise they number the file's categories in order of
    id. `categories` keeps the sparse ids.
    """

    def __init__(  # noqa: PLR0913  # what a file may have, each with a switch of its own
        self,
        annotations: str | Path,
        image_folder: str | Path | None = None,
        categories: Categories | None = None,
        *,
        load_masks: bool = False,
        num_keypoints: int | None = 0,
        dense_pose: bool | None = False,
        track_ids: bool | None = False,
        ignore_exif: bool = False,
        boxes_are: BoxesAre = "xywh",
        rescale: bool = False,
        allow_paths_outside: bool = False,
    ) -> None:
        """Read the annotation file, and find its images.

        Args:
            annotations: A COCO file, or a file or folder of a layout in `layouts.table`.
            num_keypoints: Keypoints per object, of all classes; 0 to skip them, None for as many as there are.
            dense_pose: Whether to read DensePose's points; None for if there are any.
            track_ids: Whether to read `track_id` of each annotation, as TAO's and other videos' files have it; None for
                if all annotations have one.
            image_folder: The folder that `file_name` is relative to; by default the annotation file's own, `images` in
                it, or `images` beside its folder.
            ignore_exif: Whether pixels stay as stored where nothing shows that labels refer to the upright picture: for
                a tool that ignores EXIF.
            boxes_are: What the numbers of `bbox` are, for files that do not have COCO's.
            rescale: Whether coordinates are moved from the declared size to that of the image file, for images that
                were resized since they were labeled.
            allow_paths_outside: Whether a `file_name` may point outside the image folder.

        Raises:
            DataError: If the file is not COCO JSON, has objects of unknown categories, or no class of the label map.
        """
        self.path, self.name, self.load_masks = Path(readable_copy(str(annotations))), str(annotations), load_masks
        self.notices, self.ignore_exif = Notices(), ignore_exif
        self.rescale, self._units = rescale, CocoUnits(boxes_are, rescale)
        refuse_unfinished(containing_folder(self.path))
        layout = find_layout(self.path)
        if boxes_are not in (_OF_COCO if layout is None else _OF_LAYOUTS):
            raise DataError(f"{self.path}: {layout.name if layout else 'COCO'}: its boxes cannot be {boxes_are}")
        # Other layouts' boxes have been turned into COCO's, from corners mostly.
        self.boxes_are = boxes_are if layout is None else None
        self.repairs = {"xywh": "sizes", "normalized_xyxy": "shares"} if layout else {}
        remote_folder = _remote_folder(str(annotations), str(image_folder or ""))
        beside = self.path.parent if layout is None else layout.picture_folder(self.path)
        pictures = Path(image_folder) if image_folder and not remote_folder else None
        build = partial(_read_table, self.path, pictures, layout, categories)
        classes = "" if categories is None else "\n".join(plain_name(item.name) for item in categories)
        table = build() if layout else kept_table(self.path, classes, build)
        self.notices.merge(table.notices)
        self._images, self._objects, self._left_out = table.images, table.objects, table.left_out
        rows = table.categories
        classes_of_file = read_classes(rows, self.path, self.notices) if categories is None else categories
        self._label_of = labels_by_category(rows, classes_of_file, self.path)
        known = [row for row in rows if row["id"] in self._label_of]
        self.categories = with_frequencies(classes_of_file, known, self._label_of, str(self.path))
        self._keypoint_indices = self._map_keypoints(known, num_keypoints)
        self._category_ids = {row["id"]: row["name"] for row in rows}
        self._dense_pose = table.dense_pose if dense_pose is None else dense_pose
        self._track_ids = table.track_ids if track_ids is None else track_ids
        names = [(row["file_name"], f"{self._describe_image(row)}: file_name") for row in self._images]
        self._pictures: LocatedPictures | RemotePictures
        if remote_folder:
            self._pictures, self.at_address = RemotePictures(remote_folder, names), True
        else:
            files = self._picture_files(image_folder, pictures or beside, allow_outside=allow_paths_outside)
            self._pictures = LocatedPictures(files, names, self.notices)

    def _picture_files(self, image_folder: str | Path | None, beside: Path, *, allow_outside: bool) -> PictureFiles:
        images = [folder for folder in (beside / "images", beside.parent / "images") if is_folder(folder)]
        usual = [Path(image_folder)] if image_folder else [beside, *images]
        candidates = [PictureFiles(folder, allow_outside=allow_outside) for folder in usual]
        if len(candidates) == 1:
            return candidates[0]
        names = [self._images[index]["file_name"] for index in range(min(_FIRST, len(self)))]
        for name in names:
            for files in candidates:
                if is_file(files.folder / name) or is_file(files.folder.joinpath(*parts_of_name(name))):
                    return files
        # Last parts of names decide; `images` is first, as the folder beside may have others of the same name below it.
        by_parts = (files for files in candidates[1:] for name in names if _has_picture(files, name))
        return next(by_parts, candidates[1])

    def _name(self, annotation: dict[str, Any]) -> str:
        return f"{self.path}: {annotation_name(annotation)}"

    def _map_keypoints(self, rows: list[dict[str, Any]], wanted: int | None) -> dict[int, list[int]]:
        """Return by label where each keypoint in the file goes among those of all classes; empty to skip them."""
        keypoint_map: dict[int, list[int]] = {}
        for row in rows if wanted != 0 else ():
            if not (names := keypoint_names(row, self.path)):
                continue
            category = self.categories.by_label(self._label_of[row["id"]])
            places = dict(zip(category.keypoints or names, category.keypoint_indices or range(len(names)), strict=True))
            if unknown := next((name for name in names if name not in places), None):
                raise DataError(f"{self.path}: category {row['name']!r}: keypoint {unknown!r} is not in the label map")
            keypoint_map[category.label] = [places[name] for name in names]
        count = max((max(indices) + 1 for indices in keypoint_map.values()), default=0)
        if wanted and count > wanted:
            raise DataError(f"{self.path}: its classes have {count} keypoints, but num_keypoints is {wanted}")
        # Classes that the file says nothing of may have more.
        if keypoint_map:
            count = max([count, *(index + 1 for category in self.categories for index in category.keypoint_indices)])
        self._num_keypoints = wanted or count
        return keypoint_map

    def _keypoints(self, rows: list[dict[str, Any]]) -> NDArray[np.float32] | None:
        """Return the objects' keypoints [N, P, 3]; of those without, all are invisible."""
        if not self._num_keypoints:
            return None
        points = np.zeros((len(rows), self._num_keypoints, 3), np.float32)
        for into, annotation in zip(points, rows, strict=True):
            indices = self._keypoint_indices.get(self._label(annotation), [])
            given = annotation.get("keypoints")
            if given is None or not indices:
                continue
            where = f"{self._name(annotation)}: keypoints"
            with np.errstate(over="ignore"):  # `checked_sample` refuses what is infinite
                into[indices] = read_keypoints(given, len(indices), where)
        return points

    def _surface_points(self, rows: list[dict[str, Any]], where: str) -> NDArray[np.float32]:
        return coco_points([(row, self._name(row)) for row in rows]).padded(where)

    def _tracks(self, rows: list[dict[str, Any]]) -> NDArray[np.int64]:
        values = [whole_number(row.get("track_id"), f"{self._name(row)}: track_id") for row in rows]
        return np.array(values, np.int64)

    def _box(self, annotation: dict[str, Any]) -> list[float]:
        box = annotation.get("bbox")
        if not isinstance(box, list) or len(box) != 4:
            raise DataError(f"{self._name(annotation)}: expected bbox [x, y, width, height], found {str(box)[:60]}")
        return [finite_number(value, f"{self._name(annotation)}: bbox") for value in box]

    def _flag(self, annotation: dict[str, Any], name: str) -> bool:
        return bool(finite_number(annotation.get(name) or 0, f"{self._name(annotation)}: {name}"))

    def _area(self, annotation: dict[str, Any], box: list[float]) -> float:
        if annotation.get("area") is None:
            # pycocotools takes the box's area for results that have boxes alone; usually it is the mask's.
            return box[2] * box[3]
        return finite_number(annotation["area"], f"{self._name(annotation)}: area")

    @property
    def folder(self) -> Path | str:
        """The folder of the pictures, or its address."""
        return self._pictures.folder

    def __len__(self) -> int:
        return len(self._images)

    def notice_unnamed_pictures(self) -> None:
        """Count the pictures in the folder that the annotations do not name: of data in one file, they are left out."""
        if isinstance(self._pictures, RemotePictures):
            return
        named = {os.path.realpath(path) for path in self._pictures.paths()}
        for path in pictures_in(self._pictures.folder):
            if os.path.realpath(path) not in named:
                self.notices.files.add("pictures without annotations", path.name)

    def declared_size(self, index: int) -> tuple[int, int] | None:
        """Return the (height, width) that the file states of an image, or None.

        Raises:
            DataError: If they are not whole numbers.
        """
        row = self._images[index]
        if not row.get("height") or not row.get("width"):
            return None
        where = self._describe_image(row)
        return whole_number(row["height"], f"{where}: height"), whole_number(row["width"], f"{where}: width")

    def _size_meant(self, index: int, path: Path) -> tuple[int, int] | None:
        declared = self.declared_size(index)
        return self._units.size_meant(read_header(path), declared) if self.rescale else declared

    def truth(self, index: int) -> Sample:
        """Return one sample with an image [H, W, 0] of the declared size, whether its file exists or not."""
        declared = self.declared_size(index)
        if declared is None:
            raise DataError(f"{self._where(index)}: expected its height and width")
        return self._sample(index, np.zeros((*declared, 0), np.uint8))

    def rows(self, index: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return an image's row in the file, and its annotations in the order of the sample's objects."""
        row = self._images[index]
        return row, [{**annotation, "image_id": row["id"]} for annotation in self._objects[index]]

    def _where(self, index: int) -> str:
        return self._describe_image(self._images[index])

    def _path(self, index: int) -> Path:
        return self._pictures.path(index)

    def _describe_image(self, row: dict[str, Any]) -> str:
        return f"{self.path}: image {str(row['id'])[:60]}"

    def _label(self, annotation: dict[str, Any]) -> int:
        # Only annotations of known categories were kept; `or 0` excludes None for the type checker.
        return self._label_of[category_number(annotation["category_id"]) or 0]

    def _sample(self, index: int, image: NDArray[np.uint8]) -> Sample:
        row, rows = self._images[index], self._objects[index]
        where = self._describe_image(row)
        with reading(where):
            given = [self._box(annotation) for annotation in rows]
            if not self._units.are_usual:
                size, declared = (image.shape[0], image.shape[1]), self.declared_size(index)
                rows = [self._units.in_pixels(*pair, size, declared) for pair in zip(rows, given, strict=True)]
                given = [annotation["bbox"] for annotation in rows]
            boxes = np.array(given, np.float64).reshape(-1, 4)
            # The sum is in float64, so that a conversion to corners and back returns the same numbers.
            boxes[:, 2:] += boxes[:, :2]
            attributes, names = self._attributes(rows)
            sample = Sample(
                image=image,
                boxes=boxes.astype(np.float32),
                labels=np.array([self._label(row) for row in rows], np.int64),
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
                filename=self._pictures.name(index, row["file_name"]),
                left_out=int(self._left_out[index]),
                **searched_classes(row, self._label_of, self._category_ids, where),
            )
            return checked_sample(sample, where)

    def _attributes(self, rows: list[dict[str, Any]]) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
        """Return the integer `attributes` that all objects have, int64 [N, T], and their T names."""
        given = [row["attributes"] for row in rows if isinstance(row.get("attributes"), dict)]
        if not rows or len(given) < len(rows):
            return None, ()
        # Other values, such as text, have no place in the integer columns of a sample.
        whole = [{str(name) for name, value in attributes.items() if _is_whole(value)} for attributes in given]
        names = sorted(set.intersection(*whole))
        values = np.array([[attributes[name] for name in names] for attributes in given], np.int64)
        return (values, tuple(names)) if names else (None, ())

    def _masks(self, rows: list[dict[str, Any]], size: tuple[int, int]) -> NDArray[np.uint8]:
        check_mask_memory(len(rows), size, str(self.path))
        masks = np.zeros((len(rows), *size), np.uint8)
        for number, annotation in enumerate(rows):
            where, segmentation = self._name(annotation), annotation.get("segmentation")
            if not segmentation:
                raise DataError(f"{where} has no segmentation")
            masks[number] = decode_mask(segmentation, size, where)
        return masks


def _remote_folder(annotations: str, image_folder: str) -> str:
    """Return the address of the folder of pictures; empty if they are on this machine."""
    if image_folder:
        return image_folder if is_remote(image_folder) else ""
    return folder_of(annotations) if is_remote(annotations) else ""


def _has_picture(files: PictureFiles, name: str) -> bool:
    try:
        files.find(name, "")
    except DataError:
        return False
    return True


def _read_table(path: Path, image_folder: Path | None, layout: Layout | None, given: Categories | None) -> CocoTable:
    """Return the content of a COCO file, or of another layout, whose classes have the labels of `given`, if any."""
    notices = Notices()
    with reading(str(path)):
        content = with_file_names(_read(path) if layout is None else layout.read(path, image_folder))
    images = image_rows(content, path)
    categories = category_rows(content, path, notices)
    # Notices about the classes themselves are made when the table is used.
    classes = read_classes(categories, path, Notices()) if given is None else given
    names, labels = {row["id"]: row["name"] for row in categories}, labels_by_category(categories, classes, path)
    rows = read_rows(content, "annotations", path)
    annotations = annotations_by_image(rows, images, (names, labels), path, notices)
    kept = [row for of_image in annotations.of_image.values() for row in of_image]
    return CocoTable(
        images=PackedJson.of(images),
        objects=PackedJson.of(_without_image(annotations.of_image.get(row["id"], [])) for row in images),
        left_out=np.array([annotations.left_out[row["id"]] for row in images], np.int64),
        categories=categories,
        dense_pose=any("dp_I" in row for row in kept),
        track_ids=all("track_id" in row for row in kept),
        notices=notices,
    )


def _without_image(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return an image's annotations without its id, which each repeats in the file."""
    return [{key: value for key, value in row.items() if key != "image_id"} for row in rows]


def _read(path: Path) -> dict[str, Any]:
    if is_folder(path):
        known = ", ".join(item.name for item in LAYOUTS)
        raise DataError(f"{shown(path)}: a folder without annotations of a known layout, such as {known}")
    # What is not CVAT's has no annotations of images; its reader says what it has.
    content = read_cvat(path) if path.suffix.lower() == ".xml" else read_json(path)
    if not isinstance(content, dict):
        raise DataError(
            f"{shown(path)}: expected an object with images, annotations and categories, "
            f"found a {type(content).__name__}"
        )
    return content


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
