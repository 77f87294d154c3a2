"""Recognizing the format of data, and their parts for training and for evaluation."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, is_folder, refuse_unfinished, shown
from boxwright.builders.input_reader import build_dataset
from boxwright.config import messages as m
from boxwright.data.coco import ROBOFLOW_ANNOTATIONS
from boxwright.data.dataset import Dataset
from boxwright.data.formats import annotations_in, beginning_of, has_voc_annotations, is_coco_file, is_record_file
from boxwright.data.label_map import load_label_map
from boxwright.data.record_classes import classes_of_records
from boxwright.data.yolo import find_yolo, yolo_splits
from boxwright.inference.files import IMAGES
from boxwright.preflight.records import can_be_read, spread
from boxwright.types import Categories, Category

_TRAINING = ("trainval", "train", "training")
_TRIED = 50
_HELD_OUT = ("val", "valid", "validation", "eval", "test", "testing")
# For the error if nothing was recognized.
_EXPECTED = (
    "YOLO (a data.yaml), COCO (a .json of annotations), Roboflow's exports of both, CVAT's (annotations.xml), Label "
    "Studio's or FiftyOne's, Pascal VOC (a folder of .xml files), Open Images (a .csv of boxes) or "
    "TFRecords (.record, .tfrecord)"
)


@dataclass(frozen=True)
class Recognized:
    """Data of a known format.

    Attributes:
        held_out: The reader for evaluation; None if the data have no split.
        label_map: The label map beside the data, if any.
        notes: Notes for the user, such as unused lists.
    """

    kind: str
    train: m.InputReader
    held_out: m.InputReader | None
    label_map: Categories | None = None
    notes: tuple[str, ...] = field(default=())


def recognize(data: str | Path, *, allow_paths_outside: bool = False) -> Recognized:
    """Return the format and the split of data, with absolute paths.

    Args:
        allow_paths_outside: Whether annotations may name files outside their folder, as a data.yaml's `path: ../data`.

    Raises:
        DataError: If the path does not exist, or nothing was recognized; the error lists the known formats.
    """
    path = Path(os.path.abspath(data))  # links are not resolved: the format may show only in a link's name
    if not (is_folder(path) or is_file(path)):
        raise DataError(f"{shown(data)}: no such file or folder")
    if path.suffix == ".config":
        raise DataError(f"{shown(data)} is a configuration; pass it as --config")
    refuse_unfinished(path)
    # Formats with a file of a fixed name come first: such a folder may hold others, such as .json files, too.
    for kind in (_yolo, _roboflow_coco, _records, _voc, _coco, _open_images):
        found = kind(path)
        if found is not None:
            return _with_paths_outside(found) if allow_paths_outside else found
    inside = sorted(item.name for item in path.iterdir())[:8] if is_folder(path) else [path.name]
    pictures = sum(item.suffix.lower() in IMAGES for item in path.rglob("*")) if is_folder(path) else 0
    count = "1 image" if pictures == 1 else f"{pictures} images"
    annotations = f"{count} and no annotations" if pictures else "no known format"
    raise DataError(f"{shown(data)}: {annotations} ({', '.join(inside) or 'an empty folder'}); expected {_EXPECTED}")


def _with_paths_outside(found: Recognized) -> Recognized:
    readers = [copy.deepcopy(reader) for reader in (found.train, found.held_out) if reader is not None]
    for reader in readers:
        own = getattr(reader, str(reader.which("input_reader")))
        # TFRecords hold their images, and have no such field.
        if "allow_paths_outside" in own.fields:
            own.allow_paths_outside = True
    return replace(found, train=readers[0], held_out=readers[1] if len(readers) > 1 else None)


def open_recognized(found: Recognized, *, masks: bool = False) -> tuple[Dataset, Dataset | None]:
    """Return the training data and, if there is a split, the evaluation data, both with the same classes.

    Args:
        masks: Whether samples have masks, if every object that is tried has an outline.
    """
    train, held_out = found.train, found.held_out
    if masks and _have_outlines(train):
        train, held_out = (None if one is None else _with_masks(one) for one in (train, held_out))  # type: ignore[assignment]
    records = train.tf_record_input_reader
    named = found.label_map or (classes_of_records(list(records.input_path)) if records is not None else None)
    training = build_dataset(train, "the data", named)
    if held_out is None:
        return training, None
    if train.voc_input_reader is None:
        return training, build_dataset(held_out, "the data", training.categories)
    # VOC declares no classes: they are those that occur on either side.
    names = {item.name for item in (*training.categories, *build_dataset(held_out, "the data").categories)}
    both = Categories(tuple(Category(label, label + 1, name) for label, name in enumerate(sorted(names))))
    return build_dataset(train, "the data", both), build_dataset(held_out, "the data", both)


def _with_masks(reader: m.InputReader) -> m.InputReader:
    changed = copy.deepcopy(reader)
    changed.load_instance_masks = True
    return changed


def _have_outlines(reader: m.InputReader) -> bool:
    """Whether every object of some samples has an outline."""
    if reader.which("input_reader") not in ("coco_input_reader", "yolo_input_reader"):
        return False
    plain, masked = (build_dataset(one, "the data") for one in (reader, _with_masks(reader)))
    tried = [number for number in spread(len(plain), _TRIED) if can_be_read(plain, number)]
    if not all(can_be_read(masked, number) for number in tried):
        return False
    found = [masked[number].masks for number in tried]
    return any(masks is not None and masks.any() for masks in found)


def _yolo(path: Path) -> Recognized | None:
    found = find_yolo(path)
    if found is None:
        return None
    lists = yolo_splits(found)
    if "train" not in lists:
        raise DataError(f"{found}: no list 'train'; there are: {', '.join(lists) or 'none'}")
    held_out = next((name for name in ("val", "valid", "test") if name in lists), None)
    notes = _unused([*lists], "train", held_out)
    if held_out is not None and lists[held_out] == lists["train"]:
        held_out, notes = None, (f"{held_out} names the same images as train, and is not used",)

    def reader(split: str) -> m.InputReader:
        return m.InputReader(yolo_input_reader=m.YoloInputReader(data=str(found), split=split))

    return Recognized("YOLO", reader("train"), reader(held_out) if held_out else None, notes=notes)


def _unused(lists: Sequence[str], train: str, held_out: str | None) -> tuple[str, ...]:
    """Return notes on unused lists: test lists are kept for a final evaluation, others are left to the user."""
    rest = [name for name in lists if name not in (train, held_out)]
    tests = [name for name in rest if "test" in _words(name)]
    # VOC's train and val are parts of trainval.
    others = [name for name in rest if name not in tests and not (train == "trainval" and name in ("train", "val"))]
    notes = []
    if tests:
        notes.append(f"the list {' and '.join(tests)} is kept for a final evaluation")
    if others:
        notes.append(f"not used: {', '.join(others[:4])}{', …' if len(others) > 4 else ''}")
    return tuple(notes)


def _roboflow_coco(path: Path) -> Recognized | None:
    """Recognize a folder with `_annotations.coco.json`, or with one such folder for each list."""
    if not is_folder(path):
        return None

    def reader(name: str) -> m.InputReader:
        return m.InputReader(coco_input_reader=m.CocoInputReader(annotations=str(path / name / ROBOFLOW_ANNOTATIONS)))

    if is_file(path / ROBOFLOW_ANNOTATIONS):
        return Recognized("Roboflow's COCO", reader(""), None)
    lists = sorted(folder.parent.name for folder in path.glob(f"*/{ROBOFLOW_ANNOTATIONS}"))
    return _of_lists("Roboflow's COCO", lists, path, reader) if lists else None


def _two_of(names: Sequence[str], path: Path) -> tuple[str, str | None]:
    """Return the lists for training and for evaluation, by their names.

    `trainval`, which includes val, is paired with `test`; without a test list, train is paired with val.
    """
    by_word = {word: [name for name in names if word in _words(name)] for word in (*_TRAINING, *_HELD_OUT)}
    if by_word["trainval"] and (by_word["test"] or not (by_word["train"] and by_word["val"])):
        return by_word["trainval"][0], by_word["test"][0] if by_word["test"] else None
    train = next((by_word[word][0] for word in ("train", "training") if by_word[word]), None)
    if train is None and len(names) == 1:
        return names[0], None
    if train is None:
        raise DataError(f"{path}: which of {', '.join(names)} is for training? expected one named train")
    held_out = next((name for word in _HELD_OUT for name in by_word[word] if name != train), None)
    return train, held_out


def _of_lists(
    kind: str,
    names: Sequence[str],
    path: Path,
    reader: Callable[[str], m.InputReader],
    label_map: Categories | None = None,
) -> Recognized:
    """Return data that have lists, of which two are chosen by name."""
    train, held_out = _two_of(names, path)
    notes = _unused(names, train, held_out)
    return Recognized(kind, reader(train), None if held_out is None else reader(held_out), label_map, notes)


def _words(name: str) -> list[str]:
    """Return the words of a name: `instances_train2017` is instances and train."""
    return re.findall("[a-z]+", name.lower())


def _records(path: Path) -> Recognized | None:
    """Recognize TFRecord files: a folder of them, or one of them with its shards."""
    folder = path if is_folder(path) else path.parent
    files = [file for file in sorted(folder.iterdir()) if is_record_file(file)]
    if is_file(path):
        if path not in files:
            return None
        files = [path]
    if not files:
        return None
    shards = re.compile(r"-[0-9]{5}-of-([0-9]{5})$")
    names = sorted({shards.sub(r"-?????-of-\1", file.name) for file in files})
    label_map = next(
        (file for file in (folder / "label_map.pbtxt", *sorted(folder.glob("*.pbtxt"))) if is_file(file)), None
    )

    def reader(name: str) -> m.InputReader:
        return m.InputReader(tf_record_input_reader=m.TFRecordInputReader(input_path=[str(folder / name)]))

    return _of_lists("TFRecords", names, folder, reader, load_label_map(label_map) if label_map else None)


def _coco(path: Path) -> Recognized | None:
    """Recognize COCO's JSON: one file, a folder of images with one, or `annotations/instances_*.json`."""
    files = [path] if path.suffix in (".json", ".xml") and is_file(path) else _json_files(path)
    files = [file for file in files if is_coco_file(file)]
    if not files:
        return None
    by_name = {file.stem: file for file in files}

    def reader(name: str) -> m.InputReader:
        images = _images_of(by_name[name], path if is_folder(path) else path.parent)
        return m.InputReader(
            coco_input_reader=m.CocoInputReader(annotations=str(by_name[name]), image_folder=str(images))
        )

    return _of_lists("COCO", sorted(by_name), path, reader)


def _json_files(path: Path) -> list[Path]:
    if not is_folder(path):
        return []
    if (exported := annotations_in(path)) is not None:
        return [exported]
    files = sorted(path.glob("*.json")) or sorted(path.glob("annotations/*.json"))
    detections = [file for file in files if file.stem.startswith("instances")]
    return detections or files


def _images_of(file: Path, root: Path) -> Path:
    """Return the folder that a file's image names are relative to: the one with its first image, else a likely one."""
    words = [word for word in re.findall("[a-z]+[0-9]*", file.stem.lower()) if word not in ("instances", "annotations")]
    roots = dict.fromkeys((root, file.parent, file.parent.parent))
    names = ("", *words, "images", "JPEGImages", "data", *(f"images/{word}" for word in words))
    candidates: list[Path] = [folder / name for folder in roots for name in names]
    # Only the beginning of the file, which may have hundreds of megabytes.
    first = re.search(r'"file_name"\s*:\s*"([^"]+)"', beginning_of(file))
    if first is not None:
        # Decodes JSON's escapes, such as \u00e9.
        named: str = json.loads(f'"{first[1]}"')
        for folder in candidates:
            if is_file(folder / named):
                return folder
    likely = [folder for folder in candidates[1:] if is_folder(folder) and _has_images(folder)]
    return likely[0] if likely else root


def _has_images(folder: Path) -> bool:
    return any(item.suffix.lower() in IMAGES for item in folder.iterdir())


def _open_images(path: Path) -> Recognized | None:
    """Recognize Open Images' CSV of boxes, with the images beside it."""
    files = sorted(path.glob("*bbox*.csv")) if is_folder(path) else [path]
    if not files or files[0].suffix != ".csv":
        return None
    root = path if is_folder(path) else path.parent
    by_name = {file.stem: file for file in files}

    def reader(name: str) -> m.InputReader:
        images = next((f for f in (*(root / word for word in _words(name)), root / "images") if is_folder(f)), root)
        return m.InputReader(
            open_images_input_reader=m.OpenImagesInputReader(annotations=str(by_name[name]), image_folder=str(images))
        )

    return _of_lists("Open Images", sorted(by_name), path, reader)


def _voc(path: Path) -> Recognized | None:
    """Recognize Pascal VOC: `Annotations/*.xml`, with or without lists in `ImageSets/Main`."""
    if not is_folder(path) or annotations_in(path) is not None or not has_voc_annotations(path):
        return None
    folder = path / "ImageSets" / "Main"
    names = [file.stem for file in sorted(folder.glob("*.txt")) if not _is_of_one_class(file)]

    def reader(name: str) -> m.InputReader:
        return m.InputReader(voc_input_reader=m.VocInputReader(root=str(path), image_set=name))

    if not names or names == ["all"]:
        return Recognized("Pascal VOC", reader(""), None)
    return _of_lists("Pascal VOC", names, path, reader)


def _is_of_one_class(file: Path) -> bool:
    """Whether a VOC list is of one class, with a flag at the end of each line, not of images."""
    lines = [line for line in beginning_of(file).splitlines() if line.strip()]
    return bool(lines) and all(re.search(r"\s(-1|0|1)\s*$", line) for line in lines[:50])
