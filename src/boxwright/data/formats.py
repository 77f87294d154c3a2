"""Detection of a data set's format by its name and first bytes, and opening data of any format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from boxwright.base.files import is_file, is_folder
from boxwright.data.coco import ROBOFLOW_ANNOTATIONS, CocoDataset
from boxwright.data.cvat import CVAT_ANNOTATIONS, is_cvat_text
from boxwright.data.dataset import Dataset
from boxwright.data.fddb import FddbDataset, is_fddb
from boxwright.data.fiftyone import FIFTYONE_LABELS
from boxwright.data.label_map import load_label_map
from boxwright.data.open_images import OpenImagesDataset
from boxwright.data.record_classes import classes_of_records
from boxwright.data.tf_example import RecordFields
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.data.voc import VocDataset
from boxwright.data.wider_face import WiderFaceDataset, is_wider_face
from boxwright.data.yolo import YoloDataset, find_yolo

DataFormat = Literal["voc", "coco", "tfrecord", "yolo", "open_images", "wider_face", "fddb"]
_BY_ENDING: dict[str, DataFormat] = {
    ".json": "coco",
    ".xml": "coco",
    ".csv": "open_images",
    ".yaml": "yolo",
    ".yml": "yolo",
}
_RECORDS = re.compile(r".+\.(tf_?)?records?(-[0-9]{5}-of-[0-9]{5})?|.+-[0-9]{5}-of-[0-9]{5}", re.IGNORECASE)
_BEGINNING = 1 << 20
# The first key of COCO's files, and of FiftyOne's; Label Studio's begin with a task.
_COCO = r'\s*\{\s*"(info|licenses|images|annotations|categories|type|classes|labels)"\s*:'
_TASKS = r"\s*\[\s*\{"


def detect_format(path: str | Path) -> DataFormat:
    """Guess the format of the data at a path.

    YOLO for a .yaml and for a folder with a data.yaml, COCO for .json, for CVAT's .xml and for a folder with Roboflow's
    `_annotations.coco.json`, VOC for any other folder, Open Images for .csv, WIDER FACE and FDDB for a .txt that starts
    like theirs, TFRecord otherwise.
    """
    # The beginning of the file decides before its ending: both of these end in .txt.
    if is_wider_face(path):
        return "wider_face"
    if is_fddb(path):
        return "fddb"
    if find_yolo(path) is not None:
        return "yolo"
    if annotations_in(Path(path)) is not None:
        return "coco"
    if is_folder(path):
        return "voc"
    return _BY_ENDING.get(Path(path).suffix, "tfrecord")


def open_dataset(
    path: str | Path,
    *,
    label_map: str | Path | None = None,
    image_set: str = "",
    image_folder: str | Path | None = None,
    load_masks: bool = False,
    allow_paths_outside: bool = False,
) -> Dataset:
    """Open data of any format.

    Args:
        path: A VOC folder, a COCO JSON file or an annotation tool's (CVAT, Label Studio, FiftyOne), YOLO's `data.yaml`
            or its folder, Open Images' CSV of boxes, WIDER FACE's or FDDB's text file, or a TFRecord path, glob or
            `name@count`.
        label_map: The classes; by default `label_map.pbtxt` in the VOC folder or beside the TFRecords, else the classes
            that the data name.
        image_set: For VOC, a list in `ImageSets/Main`; for YOLO, train (the default), val or test.
        image_folder: The folder of images, for COCO, Open Images, WIDER FACE and FDDB.
        allow_paths_outside: Whether annotations may name files outside their folder.

    Raises:
        DataError: If the data cannot be opened, or nothing names the classes.
    """
    kind = detect_format(path)
    if kind == "coco":
        path = annotations_in(Path(path)) or path
    # `convert` writes a label map with these two formats; in the others, classes have an order.
    beside = (Path(path) if kind == "voc" else Path(path).parent) / "label_map.pbtxt"
    if label_map is None and kind in ("voc", "tfrecord") and is_file(beside):
        label_map = beside
    categories = load_label_map(label_map) if label_map else None
    if kind == "voc":
        return VocDataset(path, image_set, categories, allow_paths_outside=allow_paths_outside)
    if kind == "yolo":
        split = image_set or "train"
        return YoloDataset(path, split, categories, load_masks=load_masks, allow_paths_outside=allow_paths_outside)
    if kind == "wider_face":
        return WiderFaceDataset(path, image_folder, categories, allow_paths_outside=allow_paths_outside)
    if kind == "fddb":
        return FddbDataset(path, image_folder, categories, allow_paths_outside=allow_paths_outside)
    if kind == "open_images":
        return OpenImagesDataset(path, image_folder, categories, allow_paths_outside=allow_paths_outside)
    if kind == "coco":
        return CocoDataset(
            path,
            image_folder,
            categories,
            load_masks=load_masks,
            # No configuration says what there is.
            num_keypoints=None,
            dense_pose=None,
            track_ids=None,
            allow_paths_outside=allow_paths_outside,
        )
    if categories is None:
        categories = classes_of_records([str(path)])
    return TFRecordDataset([path], categories, RecordFields(masks="png" if load_masks else "none"))


def annotations_in(folder: Path) -> Path | None:
    """Return a folder's file of annotations that Roboflow, CVAT or FiftyOne exported; None if there is none."""
    files = (folder / name for name in (ROBOFLOW_ANNOTATIONS, CVAT_ANNOTATIONS, FIFTYONE_LABELS))
    return next((file for file in files if is_file(file) and is_coco_file(file)), None)


def is_data_file(path: Path) -> bool:
    """Return whether a .yaml, .json or .xml file holds YOLO or COCO data rather than a configuration."""
    return (
        is_coco_file(path)
        if path.suffix in (".json", ".xml")
        else re.search(r"^(names|nc)\s*:", beginning_of(path), re.M) is not None
    )


def is_record_file(path: Path) -> bool:
    """Return whether a file is a TFRecord, by its name."""
    return _RECORDS.fullmatch(path.name) is not None


def is_coco_file(path: Path) -> bool:
    """Return whether a file holds COCO annotations, or an annotation tool's, by its beginning."""
    text = beginning_of(path).lstrip("\ufeff")
    if path.suffix.lower() == ".xml":
        return is_cvat_text(text)
    return re.match(_COCO, text) is not None or (re.match(_TASKS, text) is not None and '"annotations"' in text)


def beginning_of(path: Path) -> str:
    """Return the text at the beginning of a file."""
    with path.open("rb") as file:
        return file.read(_BEGINNING).decode("utf-8", "replace")


def has_voc_annotations(path: Path) -> bool:
    """Return whether a folder has Pascal VOC annotations."""
    return any(any((path / name).glob("*.xml")) for name in ("Annotations", "annotations", "."))
