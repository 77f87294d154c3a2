"""Where annotated pictures are and how they are read: a format, its files, and one of its lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from boxwright.base.errors import DataError
from boxwright.base.read_settings import LabelConvention
from boxwright.data.coco import CocoDataset
from boxwright.data.dataset import Dataset
from boxwright.data.fddb import FddbDataset
from boxwright.data.open_images import OpenImagesDataset
from boxwright.data.record_classes import classes_of_records
from boxwright.data.row_dataset import RowDataset, open_parquet_rows, open_web_dataset
from boxwright.data.tf_example import RecordFields
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.data.voc import VocDataset
from boxwright.data.wider_face import WiderFaceDataset
from boxwright.data.yolo import YoloConvention, YoloDataset
from boxwright.types import Categories

DataFormat = Literal["voc", "coco", "tfrecord", "yolo", "open_images", "wider_face", "fddb", "web_dataset", "parquet"]


@dataclass(frozen=True)
class Source:
    """Annotated pictures of one format.

    Attributes:
        path: The annotations' file, or the folder that holds them; of TFRecords a path, glob, or `name@count`; of other
            shards a path or an address, or a glob of these.
        part: Of VOC a list in `ImageSets/Main`, of YOLO a list of its data.yaml; empty for all that the path holds.
        image_folder: What pictures' names are relative to; empty for the format's own place.
        allow_paths_outside: Whether annotations may name files outside their folder.
        ignore_exif: Whether labels refer to pixels as stored, where nothing shows that they refer to upright pictures.
        labels_are: How labels differ from what the format says; None if they do not.
    """

    format: DataFormat
    path: str
    part: str = ""
    image_folder: str = ""
    allow_paths_outside: bool = False
    ignore_exif: bool = False
    labels_are: LabelConvention | None = None


# What readers are told of labels that are not as their format says.
_CONVENTIONS: dict[tuple[DataFormat, LabelConvention], dict[str, object]] = {
    ("coco", LabelConvention.CORNERS): {"boxes_are": "xyxy"},
    ("coco", LabelConvention.SIZES): {"boxes_are": "sizes"},
    ("coco", LabelConvention.SHARES): {"boxes_are": "normalized_xywh"},
    ("coco", LabelConvention.CORNERS_IN_SHARES): {"boxes_are": "normalized_xyxy"},
    ("coco", LabelConvention.OF_ANOTHER_SIZE): {"rescale": True},
    ("voc", LabelConvention.SIZES): {"sizes": True},
    ("voc", LabelConvention.OF_ANOTHER_SIZE): {"rescale": True},
    ("yolo", LabelConvention.CORNERS): {"convention": YoloConvention(coordinates="corners")},
    ("yolo", LabelConvention.PIXELS): {"convention": YoloConvention(coordinates="pixels")},
    ("yolo", LabelConvention.CORNERS_IN_PIXELS): {"convention": YoloConvention(coordinates="corners_in_pixels")},
    ("yolo", LabelConvention.CLASSES_FROM_ONE): {"convention": YoloConvention(classes_from_one=True)},
    ("tfrecord", LabelConvention.CLASSES_FROM_ZERO): {"labels_from_zero": True},
    ("web_dataset", LabelConvention.CORNERS): {"boxes_are": "xyxy"},
    ("web_dataset", LabelConvention.SHARES): {"boxes_are": "normalized_xywh"},
    ("web_dataset", LabelConvention.CORNERS_IN_SHARES): {"boxes_are": "normalized_xyxy"},
    ("parquet", LabelConvention.CORNERS): {"boxes_are": "xyxy"},
    ("parquet", LabelConvention.SHARES): {"boxes_are": "normalized_xywh"},
    ("parquet", LabelConvention.CORNERS_IN_SHARES): {"boxes_are": "normalized_xyxy"},
}


_OPEN_ROWS: dict[DataFormat, Callable[..., RowDataset]] = {
    "web_dataset": open_web_dataset,
    "parquet": open_parquet_rows,
}


def _convention(source: Source) -> dict[str, object]:
    """Return the reader's arguments for labels that are not as the format says."""
    if source.labels_are is None:
        return {}
    known = {are: convention for (kind, are), convention in _CONVENTIONS.items() if kind == source.format}
    if source.labels_are not in known:
        words = ", ".join(are.value for are in known) or "nothing else"
        raise DataError(f"{source.path}: labels_are {source.labels_are.value}: these can be {words}")
    return known[source.labels_are]


def open_source(source: Source, categories: Categories | None = None, *, load_masks: bool = False) -> Dataset:
    """Open annotated pictures.

    Args:
        categories: The classes; by default those that the data name.
        load_masks: Whether samples have masks, from outlines.

    Raises:
        DataError: If they cannot be opened, nothing names the classes, or labels are clearly not as the format says.
    """
    convention = _convention(source)
    if source.format == "tfrecord":
        categories = categories or classes_of_records([source.path])
        fields = RecordFields(masks="png" if load_masks else "none")
        from_zero = source.labels_are is LabelConvention.CLASSES_FROM_ZERO
        return TFRecordDataset([source.path], categories, fields, labels_from_zero=from_zero)
    if source.format in _OPEN_ROWS:
        options = {"ignore_exif": source.ignore_exif, "load_masks": load_masks, "num_keypoints": None, **convention}
        return _OPEN_ROWS[source.format]([source.path], categories, **options)
    path, folder, part = source.path, source.image_folder or None, source.part
    readers: dict[DataFormat, Callable[..., Dataset]] = {
        "voc": partial(VocDataset, path, part, categories),
        "yolo": partial(YoloDataset, path, part or "train", categories, load_masks=load_masks),
        "wider_face": partial(WiderFaceDataset, path, folder, categories),
        "fddb": partial(FddbDataset, path, folder, categories),
        "open_images": partial(OpenImagesDataset, path, folder, categories),
        # No configuration says which of these there are.
        "coco": partial(
            CocoDataset,
            *(path, folder, categories),
            load_masks=load_masks,
            num_keypoints=None,
            dense_pose=None,
            track_ids=None,
        ),
    }
    return readers[source.format](
        allow_paths_outside=source.allow_paths_outside, ignore_exif=source.ignore_exif, **convention
    )
