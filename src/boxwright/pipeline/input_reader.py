"""`InputReader`: the source of samples.

Groundtruth is changed after augmentation as `TrainConfig` and `InputReader` ask.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.base.errors import ConfigError, DataError, shortened
from boxwright.base.files import as_here, is_file
from boxwright.base.remote import readable_copy
from boxwright.config.build import build_chosen, require
from boxwright.config.preset import packaged
from boxwright.config.support import refuse_unsupported
from boxwright.data.augmentation.transform import Transform
from boxwright.data.coco import CocoDataset
from boxwright.data.dataset import Dataset, with_white_level
from boxwright.data.fddb import FddbDataset
from boxwright.data.groundtruth import (
    ClassScores,
    HiddenRegionsDataset,
    KeepFirst,
    MergeLabels,
    WeighClasses,
    without_class_scores,
    without_verified_labels,
)
from boxwright.data.label_map import ClassHierarchy, KeypointNames, load_label_map
from boxwright.data.listed import ListedDataset, read_sample_list
from boxwright.data.open_images import OpenImagesDataset
from boxwright.data.row_dataset import open_parquet_rows, open_web_dataset
from boxwright.data.sources import DataFormat, Source
from boxwright.data.tf_example import MaskEncoding, RecordFields
from boxwright.data.tfrecord_dataset import TFRecordDataset, TFSequenceDataset
from boxwright.data.voc import VocDataset
from boxwright.data.wider_face import WiderFaceDataset
from boxwright.data.yolo import YoloDataset
from boxwright.pipeline import messages as m
from boxwright.pipeline.data_paths import is_placeholder, lost_path, require_data
from boxwright.types import Categories


def build_groundtruth(
    config: m.TrainEvalPipelineConfig, categories: Categories, num_classes: int
) -> tuple[Transform, ...]:
    """Return the transforms after augmentation, in order; `num_classes` counts foreground classes."""
    train = require(config.train_config, config, "train_config")
    reader = require(config.train_input_reader, config, "train_input_reader")
    steps: list[Transform] = []
    if reader.class_weight:
        steps.append(_weigher(reader, categories))
    if train.merge_multiple_label_boxes:
        steps.append(MergeLabels(num_classes))
    if train.use_multiclass_scores:
        steps.append(ClassScores(num_classes))
    elif reader.load_multiclass_scores:
        steps.append(without_class_scores)
    if "max_number_of_boxes" in reader.present():
        steps.append(KeepFirst(reader.max_number_of_boxes))
    center_net = config.model.center_net if config.model else None
    centers = center_net.object_center_params if center_net else None
    if centers is None or not centers.use_labeled_classes:
        steps.append(without_verified_labels)
    return tuple(steps)


def _weigher(reader: m.InputReader, categories: Categories) -> WeighClasses:
    weights = np.ones(categories.num_slots, np.float32)
    for item in reader.class_weight:
        category = categories.by_name(item.name)
        if category is None:
            known = ", ".join(category.name for category in categories)
            raise item.refusal("name", f"unknown class {item.name!r}; known: {known}")
        weights[category.label] = item.weight
    return WeighClasses(weights)


def check_reader(config: m.InputReader | None, path: str, *, known: bool = False) -> m.InputReader:
    """Return a reader that names data and, unless the classes are `known`, a label map; the data are not opened."""
    if config is None:
        raise ConfigError(f"{path} is missing from the configuration")
    refuse_unsupported(config, path)
    nameless = config.tf_record_input_reader is not None or config.web_dataset_input_reader is not None
    if nameless and not (known or _names_classes(config)):
        problem = f"{config.label_map_path} stands for your label map" if config.label_map_path else "missing"
        what = (
            "records name classes by number" if config.tf_record_input_reader else "archives do not list their classes"
        )
        raise config.refusal("label_map_path", f"{problem}; {what}")
    if config.use_keypoint_label_map and is_file(label_map := packaged(as_here(config.label_map_path))):
        _keypoint_names(config, load_label_map(label_map))
    return config


def _names_classes(reader: m.InputReader) -> bool:
    """Return whether a reader names a label map, which the zoo's placeholder does not."""
    return bool(reader.label_map_path) and not is_placeholder(reader.label_map_path)


def _keypoint_names(reader: m.InputReader, categories: Categories) -> KeypointNames | None:
    """Return where keypoints go by name; None where they stand in the records' order."""
    if not reader.use_keypoint_label_map:
        return None
    try:
        return KeypointNames.of(categories, reader.num_keypoints)
    except DataError as error:
        raise reader.refusal("use_keypoint_label_map", f"{reader.label_map_path or 'the classes'}: {error}") from None


def build_dataset(config: m.InputReader | None, path: str, categories: Categories | None = None) -> Dataset:
    """Open the data of a reader; `categories` are the classes if it names no label map, or the zoo's placeholder.

    Raises:
        ConfigError: If the zoo's configuration leaves the data to its user, who has not named them.
    """
    reader = check_reader(config, path, known=categories is not None)
    require_data(reader, path)
    try:
        return _open_dataset(reader, categories)
    except DataError as error:
        if not (lost := lost_path(reader)):
            raise
        folder = f"{shortened(str(lost), 400)} is searched in the current folder, {Path.cwd()}"
        raise DataError(
            f"{error}; {folder}: a run whose paths are relative is used from where it was trained"
        ) from None


def _open_dataset(reader: m.InputReader, categories: Categories | None) -> Dataset:
    categories = load_label_map(readable_copy(as_here(reader.label_map_path))) if _names_classes(reader) else categories
    dataset: Dataset = build_chosen(reader, "input_reader", _READERS, categories, reader)
    dataset = with_white_level(dataset, reader.white_level)
    if reader.hide_ignored_regions:
        dataset = HiddenRegionsDataset(dataset)
    if not reader.sample_list:
        return dataset
    listed = readable_copy(as_here(reader.sample_list))
    return ListedDataset(dataset, read_sample_list(listed), listed)


_MASKS: dict[m.InstanceMaskType, MaskEncoding] = {
    m.InstanceMaskType.DEFAULT: "numerical",
    m.InstanceMaskType.NUMERICAL_MASKS: "numerical",
    m.InstanceMaskType.PNG_MASKS: "png",
}


def _tf_record(config: m.TFRecordInputReader, categories: Categories, reader: m.InputReader) -> Dataset:
    paths = [as_here(path) for path in config.input_path]
    wanted = RecordFields(
        masks=_MASKS[reader.mask_type] if reader.load_instance_masks else "none",
        num_keypoints=reader.num_keypoints,
        keypoint_depths=reader.load_keypoint_depth_features,
        keypoint_names=_keypoint_names(reader, categories),
        multiclass_scores=reader.load_multiclass_scores,
        track_ids=reader.load_track_id,
        confidences=reader.load_confidences,
        dense_pose=reader.load_dense_pose,
        more_channels=reader.num_additional_channels,
        hierarchy=ClassHierarchy.of(categories, reader.label_map_path) if reader.expand_labels_hierarchy else None,
        context=reader.load_context_features,
        context_image_ids=reader.load_context_image_ids,
        white_level=reader.white_level,
    )
    if reader.input_type.name == "TF_SEQUENCE_EXAMPLE":
        frame = None if reader.frame_index < 0 else reader.frame_index
        return TFSequenceDataset(paths, categories, wanted, frame=frame)
    return TFRecordDataset(paths, categories, wanted)


def _picture_options(config: Any, reader: m.InputReader) -> dict[str, Any]:
    """Return what the readers of picture files have in common."""
    return {"allow_paths_outside": config.allow_paths_outside, "ignore_exif": reader.ignore_exif}


def _coco(config: m.CocoInputReader, categories: Categories | None, reader: m.InputReader) -> Dataset:
    return CocoDataset(
        as_here(config.annotations),
        as_here(config.image_folder) or None,
        categories,
        load_masks=config.load_masks or reader.load_instance_masks,
        num_keypoints=reader.num_keypoints,
        dense_pose=reader.load_dense_pose,
        track_ids=reader.load_track_id,
        **_picture_options(config, reader),
    )


def _yolo(config: m.YoloInputReader, categories: Categories | None, reader: m.InputReader) -> Dataset:
    options = _picture_options(config, reader)
    return YoloDataset(as_here(config.data), config.split, categories, load_masks=reader.load_instance_masks, **options)


def _open_images(config: m.OpenImagesInputReader, categories: Categories | None, reader: m.InputReader) -> Dataset:
    return OpenImagesDataset(
        as_here(config.annotations),
        as_here(config.image_folder) or None,
        categories,
        descriptions=as_here(config.class_descriptions) or None,
        image_labels=as_here(config.image_labels) or None,
        **_picture_options(config, reader),
    )


def _wider_face(config: m.WiderFaceInputReader, categories: Categories | None, reader: m.InputReader) -> Dataset:
    paths = as_here(config.annotations), as_here(config.image_folder) or None
    subsets = as_here(config.subsets) or None
    return WiderFaceDataset(*paths, categories, subsets=subsets, **_picture_options(config, reader))


def _fddb(config: m.FddbInputReader, categories: Categories | None, reader: m.InputReader) -> Dataset:
    paths = as_here(config.annotations), as_here(config.image_folder) or None
    return FddbDataset(*paths, categories, **_picture_options(config, reader))


def _web_dataset(config: m.WebDatasetInputReader, categories: Categories, reader: m.InputReader) -> Dataset:
    return open_web_dataset(categories=categories, **_row_options(config, reader))


def _parquet(config: m.ParquetInputReader, categories: Categories | None, reader: m.InputReader) -> Dataset:
    return open_parquet_rows(categories=categories, **_row_options(config, reader))


def _row_options(config: m.WebDatasetInputReader | m.ParquetInputReader, reader: m.InputReader) -> dict[str, Any]:
    paths = [as_here(path) for path in config.input_path]
    return {
        "paths": paths,
        "boxes_are": config.boxes_are,
        "ignore_exif": reader.ignore_exif,
        "load_masks": reader.load_instance_masks,
        "num_keypoints": reader.num_keypoints,
    }


def _external(config: m.ExternalInputReader, categories: Categories | None, reader: m.InputReader) -> Dataset:
    del config, categories
    raise reader.refusal("external_input_reader", "its data are given in Python: boxwright.train(config, dataset=...)")


_READERS: dict[str, Callable[..., Dataset]] = {
    "tf_record_input_reader": _tf_record,
    "external_input_reader": _external,
    "coco_input_reader": _coco,
    "voc_input_reader": lambda config, categories, reader: VocDataset(
        as_here(config.root), config.image_set, categories, **_picture_options(config, reader)
    ),
    "yolo_input_reader": _yolo,
    "open_images_input_reader": _open_images,
    "wider_face_input_reader": _wider_face,
    "fddb_input_reader": _fddb,
    "web_dataset_input_reader": _web_dataset,
    "parquet_input_reader": _parquet,
}


def build_input_reader(source: Source) -> m.InputReader:
    """Return the reader of a recognized source."""
    outside = {"allow_paths_outside": True} if source.allow_paths_outside else {}
    images = {"image_folder": source.image_folder} if source.image_folder else {}
    annotated = {"annotations": source.path, **images, **outside}
    values: dict[DataFormat, dict[str, Any]] = {
        "tfrecord": {"input_path": [source.path]},
        "web_dataset": {"input_path": [source.path]},
        "parquet": {"input_path": [source.path]},
        "voc": {"root": source.path, "image_set": source.part, **outside},
        "yolo": {"data": source.path, "split": source.part or "train", **outside},
        "coco": annotated,
        "open_images": annotated,
        "wider_face": annotated,
        "fddb": annotated,
    }
    name = "tf_record_input_reader" if source.format == "tfrecord" else f"{source.format}_input_reader"
    reader = m.InputReader(**{name: m.InputReader.fields[name].type(**values[source.format])})
    if source.ignore_exif:
        reader.ignore_exif = True
    return reader


def state_white_level(config: m.TrainEvalPipelineConfig, level: float) -> m.TrainEvalPipelineConfig:
    """Return a configuration whose readers state what is white in images that are not of 8 bits, unless they do.

    Args:
        level: Of the training data; the evaluation's are read by the same.
    """
    readers = [config.train_input_reader, *config.eval_input_reader]
    if all(reader is None or reader.white_level for reader in readers) or not level:
        return config
    changed = copy.deepcopy(config)
    train = changed.train_input_reader
    stated = train.white_level if train is not None and train.white_level else level
    for reader in (train, *changed.eval_input_reader):
        if reader is not None and not reader.white_level:
            reader.white_level = stated
    return changed


# These read picture files, whose EXIF orientation counts.
_PICTURE_READERS = frozenset(_READERS) - {"tf_record_input_reader", "external_input_reader"}


def with_orientation_rule(
    config: m.TrainEvalPipelineConfig, begun: m.TrainEvalPipelineConfig | None = None
) -> m.TrainEvalPipelineConfig:
    """Return a configuration whose readers state whether they ignore EXIF: as set, else as a run began, else false.

    Args:
        config: What a run is started or resumed with.
        begun: The configuration that a resumed run began with.
    """
    earlier = _picture_readers(begun)
    changed = copy.deepcopy(config)
    for number, reader in enumerate(_picture_readers(changed)):
        if not reader.has("ignore_exif"):
            reader.ignore_exif = earlier[min(number, len(earlier) - 1)].ignore_exif if earlier else False
    return changed


def with_earlier_rule(config: m.TrainEvalPipelineConfig) -> m.TrainEvalPipelineConfig:
    """Return a run's configuration whose readers ignore EXIF unless they say otherwise, as runs did before they could.

    A run writes the field when it begins (`with_orientation_rule`), so that a configuration without it is older.
    """
    changed = copy.deepcopy(config)
    for reader in _picture_readers(changed):
        if not reader.has("ignore_exif"):
            reader.ignore_exif = True
    return changed


def _picture_readers(config: m.TrainEvalPipelineConfig | None) -> list[m.InputReader]:
    readers = [] if config is None else [config.train_input_reader, *config.eval_input_reader]
    return [reader for reader in readers if reader is not None and reader.which("input_reader") in _PICTURE_READERS]
