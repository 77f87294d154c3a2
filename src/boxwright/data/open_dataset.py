"""Opening annotated pictures of any format that is recognized."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, is_folder, shown
from boxwright.base.read_settings import LabelConvention
from boxwright.base.remote import is_remote
from boxwright.data.coco import CocoDataset
from boxwright.data.coordinates import coordinates_problem
from boxwright.data.dataset import Dataset
from boxwright.data.label_map import load_label_map
from boxwright.data.recognize import face_lists, label_map_beside, recognize
from boxwright.data.recognize_shards import source_of_pattern
from boxwright.data.recognized import RecognizedData, words_of
from boxwright.data.record_classes import check_record_boxes, check_record_labels
from boxwright.data.sources import Source, open_source
from boxwright.types import Categories, Category, Sample

_LOG = logging.getLogger("boxwright")
_TRIED = 50  # samples that are read to find out whether all objects have outlines
_RECORDS_READ = 2000  # of each TFRecord file, to see what their labels are


def open_recognized(recognized: RecognizedData, *, masks: bool = False) -> tuple[Dataset, Dataset | None]:
    """Return the training data and, if there is a split, the evaluation data, both with the same classes.

    Args:
        recognized: The data's sources.
        masks: Whether samples have masks, if every object that is tried has an outline.
    """
    train, held_out = recognized.train, recognized.held_out
    masks = masks and _have_outlines(train)
    given = None if recognized.label_map is None else load_label_map(recognized.label_map)
    training = _open_source(train, given, masks=masks)
    if held_out is None:
        if isinstance(training, CocoDataset) and len(recognized.lists) < 2:
            training.notice_unnamed_pictures()
        return training, None
    if given is not None or train.format == "yolo":
        return training, _open_source(held_out, training.categories, masks=masks)
    evaluation = _open_source(held_out, None, masks=masks)
    both = _all_classes(training.categories, evaluation.categories)
    if both == training.categories == evaluation.categories:
        return training, evaluation
    return open_source(train, both, load_masks=masks), open_source(held_out, both, load_masks=masks)


def _open_source(source: Source, categories: Categories | None, *, masks: bool) -> Dataset:
    """Open a source, and refuse it where its labels are clearly not as its format says.

    Raises:
        DataError: With what they are, and the option that reads them so.
    """
    dataset = open_source(source, categories, load_masks=masks)
    if source.labels_are is not None:
        return dataset
    if source.format == "tfrecord":
        problem = check_record_labels([source.path], dataset.categories, _RECORDS_READ)
        problem = problem or check_record_boxes([source.path], _RECORDS_READ)
    elif (misread := coordinates_problem(dataset)) is None:
        problem = None
    else:
        repair = f"boxwright convert --labels_are {misread.switch} reads them so" if misread.switch else ""
        problem = f"{dataset.name}: {misread.sentence}" + (f"; {repair}" if repair else "")
    if problem is not None:
        raise DataError(problem)
    return dataset


def _all_classes(first: Categories, second: Categories) -> Categories:
    """Return the classes of both sides: the first's, if it has all, else all in alphabetical order."""
    names = {item.name for item in (*first, *second)}
    if len(names) == len(first):
        return first
    return Categories(tuple(Category(label, label + 1, name) for label, name in enumerate(sorted(names))))


def _have_outlines(source: Source) -> bool:
    """Whether every object of some samples has an outline."""
    if source.format not in ("coco", "yolo", "web_dataset", "parquet"):
        return False
    plain, masked = open_source(source), open_source(source, load_masks=True)
    step = max(len(plain) // _TRIED, 1)
    outlined = False
    for number in range(0, len(plain), step):
        if _read_or_none(plain, number) is None:
            continue
        sample = _read_or_none(masked, number)
        if sample is None:
            return False
        outlined = outlined or bool(sample.masks is not None and sample.masks.any())
    return outlined


def _read_or_none(dataset: Dataset, number: int) -> Sample | None:
    try:
        return dataset[number]
    except DataError:
        return None


def open_dataset(
    path: str | Path,
    *,
    label_map: str | Path | None = None,
    image_set: str = "",
    image_folder: str | Path | None = None,
    load_masks: bool = False,
    allow_paths_outside: bool = False,
    ignore_exif: bool = False,
    labels_are: LabelConvention | None = None,
) -> Dataset:
    """Open data of any format that is recognized: one list of them, or all in one if they need no list.

    Args:
        path: A file or folder; of TFRecords and other shards also a glob or `name@count`, of the latter an address.
        label_map: The classes; by default the label map beside the data, else the classes that the data name.
        image_set: The list, such as train or val; for VOC any in `ImageSets/Main`; by default all annotations of VOC,
            and the others' list for training.
        image_folder: The folder of images, for annotations in one file.
        load_masks: Whether samples have masks, from outlines.
        allow_paths_outside: Whether annotations may name files outside their folder.
        ignore_exif: As of `Source`.
        labels_are: As of `Source`.

    Raises:
        DataError: If the data cannot be opened, or nothing names the classes.
    """
    lists: dict[str, Source] = {}
    if is_folder(path) or is_file(path) or is_remote(path):
        recognized = recognize(
            path, allow_paths_outside=allow_paths_outside, ignore_exif=ignore_exif, labels_are=labels_are
        )
        source, beside = _choose_list(recognized, image_set, path), recognized.label_map
        lists = recognized.lists if is_folder(path) and len(recognized.lists) > 1 else {}
        if recognized.folder:
            _LOG.info("%s: read from the folder %s in it", shown(path), recognized.folder)
    elif (faces := face_lists(Path(path))) is not None:  # a glob of lists
        source, beside = faces.train, None
    elif (shards := source_of_pattern(str(path))) is not None:
        source, beside = replace(shards, ignore_exif=ignore_exif, labels_are=labels_are), label_map_beside(Path(path))
    else:  # a glob of TFRecords, whose error names the pattern
        source, beside = Source("tfrecord", str(path), labels_are=labels_are), label_map_beside(Path(path))
    if image_folder is not None:
        source = replace(source, image_folder=str(image_folder))
    named = label_map or beside
    dataset = _open_source(source, load_label_map(named) if named else None, masks=load_masks)
    if isinstance(dataset, CocoDataset) and not lists and image_folder is None:
        dataset.notice_unnamed_pictures()
    return dataset


def _choose_list(recognized: RecognizedData, name: str, path: str | Path) -> Source:
    if recognized.train.format == "voc" and len({source.path for source in recognized.lists.values()}) < 2:
        return replace(recognized.train, part=name)
    if not name:
        others = [other for other, source in recognized.lists.items() if source != recognized.train]
        if others:
            _LOG.info("%s: the list for training; not read: %s (image_set)", shown(path), ", ".join(others))
        return recognized.train
    same = {"val": "valid", "valid": "val"}
    source = recognized.lists.get(name) or recognized.lists.get(same.get(name, ""))
    if source is None:  # shards: val-?????-of-00010.tar
        named = [other for other in recognized.lists if name in words_of(other)]
        source = recognized.lists[named[0]] if len(named) == 1 else None
    if source is None:
        raise DataError(f"{shown(path)}: no list {name!r}; there are: {', '.join(recognized.lists) or 'none'}")
    return source
