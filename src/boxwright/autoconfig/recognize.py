"""What kind of data a path holds, and which part of it is for training and which for evaluation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from boxwright.builders.input_reader import build_dataset
from boxwright.config import messages as m
from boxwright.data.dataset import Dataset
from boxwright.data.label_map import load_label_map
from boxwright.data.record_classes import classes_of_records
from boxwright.data.yolo import find_yolo, yolo_splits
from boxwright.errors import DataError
from boxwright.files import is_file, is_folder, read_file, shown
from boxwright.inference.files import IMAGES
from boxwright.types import Categories

__all__ = ["Recognized", "is_data_file", "open_recognized", "recognize"]

_ROBOFLOW = "_annotations.coco.json"
_TRAINING = ("trainval", "train", "training")
_BEGINNING = 1 << 16
_HELD_OUT = ("val", "valid", "validation", "eval", "test", "testing")
# What a folder of a format looks like, for the error where nothing was recognized.
_EXPECTED = (
    "YOLO (a data.yaml), COCO (a .json of annotations), Roboflow's exports of both, Pascal VOC (a folder of .xml "
    "files), Open Images (a .csv of boxes) or TFRecords (.record, .tfrecord)"
)


@dataclass(frozen=True)
class Recognized:
    """Data of a known format.

    Attributes:
        kind: The format, in words.
        train: Reads the samples for training.
        held_out: Reads those for evaluation; None where the data come without a split.
        label_map: The label map that lies with the data, if one does.
        notes: What the user should know, such as lists that are left for later.
    """

    kind: str
    train: m.InputReader
    held_out: m.InputReader | None
    label_map: Categories | None = None
    notes: tuple[str, ...] = field(default=())


def recognize(data: str | Path) -> Recognized:
    """Recognize the format and the split of data.

    Args:
        data: A folder or a file.

    Returns:
        What was recognized; paths in it are absolute.

    Raises:
        DataError: Where nothing is there, or nothing was recognized, with what was looked for.
    """
    path = Path(data).resolve()
    if not (is_folder(path) or is_file(path)):
        raise DataError(f"{shown(data)}: no such file or folder")
    for kind in (_yolo, _roboflow_coco, _records, _coco, _open_images, _voc):
        found = kind(path)
        if found is not None:
            return found
    inside = sorted(item.name for item in path.iterdir())[:8] if is_folder(path) else [path.name]
    pictures = sum(item.suffix.lower() in IMAGES for item in path.rglob("*")) if is_folder(path) else 0
    annotations = f"{pictures} images and no annotations" if pictures else "nothing that is known"
    raise DataError(f"{shown(data)}: {annotations} ({', '.join(inside) or 'an empty folder'}); expected {_EXPECTED}")


def open_recognized(found: Recognized) -> tuple[Dataset, Dataset | None]:
    """Open data that were recognized: what is for training, and what for evaluation, if they come with a split."""
    records = found.train.tf_record_input_reader
    named = found.label_map or (classes_of_records(list(records.input_path)) if records is not None else None)
    train = build_dataset(found.train, "the data", named)
    held_out = found.held_out
    return train, None if held_out is None else build_dataset(held_out, "the data", train.categories)


def is_data_file(path: Path) -> bool:
    """Tell whether a .yaml or .json file holds YOLO's or COCO's data, and is no configuration."""
    text = read_file(path)[:_BEGINNING].decode("utf-8", "replace")
    if path.suffix == ".json":
        return '"annotations"' in text or '"images"' in text
    return re.search(r"^(names|nc)\s*:", text, re.MULTILINE) is not None


def _yolo(path: Path) -> Recognized | None:
    found = find_yolo(path)
    if found is None:
        return None
    lists = yolo_splits(found)
    if "train" not in lists:
        raise DataError(f"{found}: no list 'train'; there are: {', '.join(lists) or 'none'}")
    held_out = next((name for name in ("val", "valid", "test") if name in lists), None)

    def reader(split: str) -> m.InputReader:
        return m.InputReader(yolo_input_reader=m.YoloInputReader(data=str(found), split=split))

    return Recognized(
        "YOLO", reader("train"), reader(held_out) if held_out else None, notes=_left([*lists], "train", held_out)
    )


def _left(lists: Sequence[str], train: str, held_out: str | None) -> tuple[str, ...]:
    """Say which lists are not used: a test list is for the end."""
    rest = [name for name in lists if name not in (train, held_out) and "test" in name]
    return (f"the list {' and '.join(rest)} is left for a last evaluation",) if rest else ()


def _roboflow_coco(path: Path) -> Recognized | None:
    """A folder with `_annotations.coco.json`, or with one such folder for each list."""
    if not is_folder(path):
        return None

    def reader(folder: Path) -> m.InputReader:
        return m.InputReader(coco_input_reader=m.CocoInputReader(annotations=str(folder / _ROBOFLOW)))

    if is_file(path / _ROBOFLOW):
        return Recognized("Roboflow's COCO", reader(path), None)
    lists = sorted(folder.parent.name for folder in path.glob(f"*/{_ROBOFLOW}"))
    if not lists:
        return None
    train, held_out = _two_of(lists, path)
    return Recognized(
        "Roboflow's COCO",
        reader(path / train),
        reader(path / held_out) if held_out else None,
        notes=_left(lists, train, held_out),
    )


def _two_of(names: Sequence[str], path: Path) -> tuple[str, str | None]:
    """Return which of some lists is for training and which for evaluation, by their names."""
    train = next((name for word in _TRAINING for name in names if word in _words(name)), None)
    if train is None and len(names) == 1:
        return names[0], None
    if train is None:
        raise DataError(f"{path}: which of {', '.join(names)} is for training? one named train is expected")
    # VOC's own pairs: trainval is evaluated on test, since val is in it.
    order = ("test", *_HELD_OUT) if "trainval" in _words(train) else _HELD_OUT
    held_out = next((name for word in order for name in names if word in _words(name) and name != train), None)
    return train, held_out


def _words(name: str) -> list[str]:
    """Return the words of a name: `instances_train2017` is instances and train."""
    return re.findall("[a-z]+", name.lower())


def _records(path: Path) -> Recognized | None:
    """TFRecord files: of one folder, or one of them with its shards."""
    folder = path if is_folder(path) else path.parent
    pattern = re.compile(r".+\.(tf_?)?records?(-[0-9]{5}-of-[0-9]{5})?|.+-[0-9]{5}-of-[0-9]{5}", re.IGNORECASE)
    files = [file for file in sorted(folder.iterdir()) if pattern.fullmatch(file.name)]
    if is_file(path):
        if path not in files:
            return None
        files = [path]
    if not files:
        return None
    shards = re.compile(r"-[0-9]{5}-of-([0-9]{5})$")
    names = sorted({shards.sub(r"-?????-of-\1", file.name) for file in files})
    train, held_out = _two_of(names, folder)
    label_map = next(
        (file for file in (folder / "label_map.pbtxt", *sorted(folder.glob("*.pbtxt"))) if is_file(file)), None
    )

    def reader(name: str) -> m.InputReader:
        return m.InputReader(tf_record_input_reader=m.TFRecordInputReader(input_path=[str(folder / name)]))

    return Recognized(
        "TFRecords",
        reader(train),
        reader(held_out) if held_out else None,
        load_label_map(label_map) if label_map else None,
        _left(names, train, held_out),
    )


def _coco(path: Path) -> Recognized | None:
    """COCO's JSON: one file, a folder of images with one, or `annotations/instances_*.json`."""
    files = [path] if path.suffix == ".json" and is_file(path) else _json_files(path)
    if not files:
        return None
    by_name = {file.stem: file for file in files}
    train, held_out = _two_of(sorted(by_name), path)

    def reader(name: str) -> m.InputReader:
        images = _images_of(by_name[name], path if is_folder(path) else path.parent)
        return m.InputReader(
            coco_input_reader=m.CocoInputReader(annotations=str(by_name[name]), image_folder=str(images))
        )

    return Recognized(
        "COCO",
        reader(train),
        reader(held_out) if held_out else None,
        notes=_left(sorted(by_name), train, held_out),
    )


def _json_files(path: Path) -> list[Path]:
    if not is_folder(path):
        return []
    files = sorted(path.glob("*.json")) or sorted(path.glob("annotations/*.json"))
    detections = [file for file in files if file.stem.startswith("instances")]
    return detections or files


def _images_of(file: Path, root: Path) -> Path:
    """Return the folder of a file's images: one with its list's name, `images`, or its own."""
    words = [word for word in re.findall("[a-z]+[0-9]*", file.stem.lower()) if word not in ("instances", "annotations")]
    candidates = [
        folder / name for folder in (root, root / "images", file.parent) for name in (*words, "images", "JPEGImages")
    ]
    return next((folder for folder in candidates if is_folder(folder) and _has_images(folder)), root)


def _has_images(folder: Path) -> bool:
    return any(item.suffix.lower() in IMAGES for item in folder.rglob("*"))


def _open_images(path: Path) -> Recognized | None:
    """Open Images' CSV of boxes, with the images beside it."""
    files = (
        [path]
        if path.suffix == ".csv" and is_file(path)
        else sorted(path.glob("*bbox*.csv"))
        if is_folder(path)
        else []
    )
    if not files:
        return None
    root = path if is_folder(path) else path.parent
    by_name = {file.stem: file for file in files}
    train, held_out = _two_of(sorted(by_name), path)

    def reader(name: str) -> m.InputReader:
        images = next((f for f in (*(root / word for word in _words(name)), root / "images") if is_folder(f)), root)
        return m.InputReader(
            open_images_input_reader=m.OpenImagesInputReader(annotations=str(by_name[name]), image_folder=str(images))
        )

    return Recognized("Open Images", reader(train), reader(held_out) if held_out else None)


def _voc(path: Path) -> Recognized | None:
    """Pascal VOC: `Annotations/*.xml`, with lists in `ImageSets/Main` or without."""
    if not is_folder(path):
        return None
    if not any(any((path / name).glob("*.xml")) for name in ("Annotations", "annotations", ".")):
        return None
    lists = sorted(file.stem for file in (path / "ImageSets" / "Main").glob("*.txt"))
    # Lists of one class, as cat_train, come with VOC's own data.
    names = [name for name in lists if "_" not in name]

    def reader(name: str) -> m.InputReader:
        return m.InputReader(voc_input_reader=m.VocInputReader(root=str(path), image_set=name))

    if not any(word in _words(name) for name in names for word in _TRAINING):
        return Recognized("Pascal VOC", reader(""), None)
    train, held_out = _two_of(names, path)
    if train == "trainval" and held_out != "test":
        train, held_out = ("train", held_out) if "train" in names and held_out else (train, None)
    return Recognized(
        "Pascal VOC", reader(train), reader(held_out) if held_out else None, notes=_left(names, train, held_out)
    )
