"""Recognizing the format of annotated pictures, and which of their lists are for training and for evaluation.

One recognizer for every command: each format is asked in turn whether a path is its own, then the folders `train`,
`valid` and `test` of a path, then the one folder in it that holds data.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, is_folder, refuse_unfinished, shown
from boxwright.base.read_settings import LabelConvention
from boxwright.base.remote import is_remote
from boxwright.base.text import counted
from boxwright.data.archives import is_archive, unpacked
from boxwright.data.coco import ROBOFLOW_ANNOTATIONS
from boxwright.data.cvat import CVAT_ANNOTATIONS, is_cvat_text
from boxwright.data.fddb import is_fddb
from boxwright.data.fiftyone import FIFTYONE_LABELS
from boxwright.data.label_map import load_label_map
from boxwright.data.layouts.content import containing_folder, files_in, folders_in, read_beginning
from boxwright.data.layouts.table import LAYOUTS, find_layout
from boxwright.data.picture_files import files_below, is_left_over, is_picture
from boxwright.data.recognize_shards import recognize_at_address, recognize_shards
from boxwright.data.recognized import HELD_OUT, TRAINING, RecognizedData, recognize_lists, unused_lists, words_of
from boxwright.data.sources import Source
from boxwright.data.wider_face import is_wider_face
from boxwright.data.yolo_layout import find_yolo, yolo_splits

_SAME_LIST = {"val": ("valid", "validation"), "valid": ("val", "validation"), "validation": ("val", "valid")}
_DEEPEST = 2  # folders above the data
_RECORDS = re.compile(r".+\.(tf_?)?records?(-[0-9]{5}-of-[0-9]{5})?|.+-[0-9]{5}-of-[0-9]{5}", re.IGNORECASE)
# The first key or the first picture of a file may come late.
_BEGINNING = 1 << 20
# The first key of COCO's files, and of FiftyOne's; Label Studio's begin with a task.
_FIRST_OF_COCO = r'\s*\{\s*"(info|licenses|images|annotations|categories|type|classes|labels)"\s*:'
_LISTS_OF_COCO = r'"(images|annotations|categories)"\s*:\s*\['
_TASKS = r"\s*\[\s*\{"
_VOC = re.compile(r"<annotation[\s>]")
_TRIED = 20
# The error names these if nothing was recognized.
_EXPECTED = (
    "YOLO (a data.yaml or classes.txt), COCO (a .json of annotations), Pascal VOC (a folder of .xml files), TFRecords "
    "(.record, .tfrecord), Open Images (a .csv of boxes), shards of WebDataset (.tar) or Parquet, "
    + ", ".join(layout.name for layout in LAYOUTS)
    + "; folders train, valid and test of these; or a .zip or .tar of them"
)


def is_data_file(path: Path) -> bool:
    """Return whether a .yaml, .json or .xml file holds YOLO or COCO data rather than a configuration."""
    if path.suffix in (".json", ".xml"):
        return is_coco_file(path)
    return re.search(r"^(names|nc)\s*:", read_beginning(path, _BEGINNING), re.M) is not None


def is_record_file(path: Path) -> bool:
    """Return whether a file is a TFRecord, by its name."""
    return _RECORDS.fullmatch(path.name) is not None


def is_coco_file(path: Path) -> bool:
    """Return whether a file holds COCO annotations, or an annotation tool's, by its beginning."""
    text = read_beginning(path, _BEGINNING)
    if path.suffix.lower() == ".xml":
        return is_cvat_text(text)
    if text.lstrip().startswith("{") and len(set(re.findall(_LISTS_OF_COCO, text))) > 1:
        return True
    return re.match(_FIRST_OF_COCO, text) is not None or (
        re.match(_TASKS, text) is not None and '"annotations"' in text
    )


def recognize(
    data: str | Path,
    *,
    allow_paths_outside: bool = False,
    ignore_exif: bool = False,
    labels_are: LabelConvention | None = None,
) -> RecognizedData:
    """Return the format and the split of data, with absolute paths.

    Args:
        data: A file or a folder; of shards of pictures also an address.
        allow_paths_outside: Whether annotations may name files outside their folder, as a data.yaml's `path: ../data`.
        ignore_exif: Whether labels refer to pixels as stored, where nothing shows that they refer to upright pictures.
        labels_are: How labels differ from what the format says; None if they do not.

    Raises:
        DataError: If the path does not exist, or nothing was recognized; the error lists the known formats.
    """
    if is_remote(data):
        return _read_so(recognize_at_address(str(data)), ignore_exif=ignore_exif, labels_are=labels_are)
    path = Path(os.path.abspath(data))  # links are not resolved: the format may show only in a link's name
    if not (is_folder(path) or is_file(path)):
        raise DataError(f"{shown(data)}: no such file or folder")
    if path.suffix == ".config":
        raise DataError(f"{shown(data)} is a configuration; pass it as --config")
    if is_file(path) and is_archive(path) and recognize_shards(path) is None:
        path = unpacked(path)
    refuse_unfinished(path)
    recognized = _recognized(path, _DEEPEST)
    if recognized is None and is_file(path) and path.suffix.lower() in (".json", ".xml"):
        recognized = RecognizedData("COCO", Source("coco", str(path)))  # whose reader says what is wrong with it
    if recognized is None:
        raise _nothing_recognized(path, data)

    recognized = replace(recognized, label_map=recognized.label_map or label_map_beside(path))
    return _read_so(recognized, allow_paths_outside=allow_paths_outside, ignore_exif=ignore_exif, labels_are=labels_are)


def _read_so(recognized: RecognizedData, **settings: Any) -> RecognizedData:
    """Return data whose sources are read with some settings."""
    return replace(
        recognized,
        train=replace(recognized.train, **settings),
        held_out=None if recognized.held_out is None else replace(recognized.held_out, **settings),
        lists={name: replace(source, **settings) for name, source in recognized.lists.items()},
    )


def _recognized(path: Path, depth: int) -> RecognizedData | None:
    # Formats with a file of a fixed name come first: such a folder may hold others, such as .json files, too.
    for recognizer in _RECOGNIZERS:
        if (recognized := recognizer(path)) is not None:
            return recognized
    if not is_folder(path) or not depth:
        return _layout(path)
    return _split_folders(path) or _layout(path) or _layout_parts(path) or _only_folder(path, depth)


def _nothing_recognized(path: Path, data: str | Path) -> DataError:
    inside = sorted(item.name for item in path.iterdir())[:8] if is_folder(path) else [path.name]
    files = [item for item in path.rglob("*") if item.is_file()] if is_folder(path) else []
    pictures = [item for item in files if is_picture(item)]
    others = Counter(item.suffix.lower() or "without ending" for item in files if item not in set(pictures))
    annotations = f"{counted(len(pictures), 'image')} and no annotations" if pictures else "no known format"
    annotations += "".join(f", {number} {ending}" for ending, number in others.most_common(4))
    classes = sorted({item.parent.name for item in pictures if item.parent != path})
    if len(classes) > 1 and not others:
        annotations += f"; pictures sorted by class ({', '.join(classes[:4])}) have no boxes, which a detector needs"
    return DataError(f"{shown(data)}: {annotations} ({', '.join(inside) or 'an empty folder'}); expected {_EXPECTED}")


def _split_folders(path: Path) -> RecognizedData | None:
    """Recognize folders that are named as lists, each with its own annotations, in a folder or in its `images`."""
    for root in (path, path / "images"):
        folders = {folder.name: folder for folder in folders_in(root)}
        names = [name for name in folders if set(words_of(name)) & {*TRAINING, *HELD_OUT}]
        parts = {name: part for name in sorted(names) if (part := _recognized(folders[name], 0)) is not None}
        kinds = {part.kind for part in parts.values()}
        if len(kinds) > 1:
            formats = ", ".join(f"{name} ({part.kind})" for name, part in parts.items())
            raise DataError(f"{path}: its lists are of several formats: {formats}; name one of them")
        if parts:
            maps = {name: part.label_map or label_map_beside(folders[name]) for name, part in parts.items()}
            notes = [note for part in parts.values() for note in part.notes]
            lists = {name: part.train for name, part in parts.items()}
            chosen = recognize_lists(kinds.pop(), list(lists), path, lists.__getitem__, _common_map(maps))
            return replace(chosen, notes=(*notes, *chosen.notes))
    return None


def _common_map(maps: dict[str, Path | None]) -> Path | None:
    """Return the label map of a data set's lists.

    Raises:
        DataError: If two lists' label maps differ.
    """
    given = {name: path for name, path in maps.items() if path is not None}
    if len({tuple(load_label_map(path)) for path in given.values()}) > 1:
        raise DataError(f"the label maps {' and '.join(map(str, given.values()))} differ; the classes must be the same")
    return next(iter(given.values()), None)


def _only_folder(path: Path, depth: int) -> RecognizedData | None:
    """Recognize data that lie one folder too deep, as an unpacked archive's often do."""
    candidates = [(folder, _recognized(folder, depth - 1)) for folder in folders_in(path)]
    inside = [(folder, recognized) for folder, recognized in candidates if recognized is not None]
    if len(inside) > 1:
        names = ", ".join(f"{folder.name} ({recognized.kind})" for folder, recognized in inside)
        raise DataError(f"{path}: several data sets: {names}; name one of them")
    if not inside:
        return None
    folder, recognized = inside[0]
    deeper = f"{folder.name}/{recognized.folder}" if recognized.folder else folder.name
    return replace(recognized, folder=deeper, notes=(f"read from the folder {folder.name} in it", *recognized.notes))


def label_map_beside(path: Path) -> Path | None:
    """Return the label map in a folder, or beside a file: `label_map.pbtxt`, else the only one of another name."""
    folder = containing_folder(path)
    if is_file(folder / "label_map.pbtxt"):
        return folder / "label_map.pbtxt"
    others = [file for file in sorted(folder.glob("*.pbtxt")) if "item" in read_beginning(file)]
    if len(others) > 1:
        raise DataError(f"{folder}: which label map counts? {', '.join(file.name for file in others)}; keep one there")
    return others[0] if others else None


def _yolo(path: Path) -> RecognizedData | None:
    yaml = find_yolo(path)
    if yaml is None:
        return None
    lists = yolo_splits(yaml)
    if "train" not in lists:
        raise DataError(f"{yaml}: no list 'train'; there are: {', '.join(lists) or 'none'}")
    held_out = next((name for name in ("val", "valid", "test") if name in lists), None)
    notes = unused_lists([*lists], "train", held_out)
    if held_out is not None and lists[held_out] == lists["train"]:
        held_out, notes = None, (f"{held_out} names the same images as train, and is not used",)
    sources = {name: Source("yolo", str(yaml), name) for name in lists}
    return RecognizedData("YOLO", sources["train"], sources[held_out] if held_out else None, sources, notes=notes)


def _roboflow_coco(path: Path) -> RecognizedData | None:
    """Recognize a folder with `_annotations.coco.json`; its lists are folders."""
    if not is_folder(path) or not is_file(path / ROBOFLOW_ANNOTATIONS):
        return None
    return RecognizedData("Roboflow's COCO", Source("coco", str(path / ROBOFLOW_ANNOTATIONS)))


def _records(path: Path) -> RecognizedData | None:
    """Recognize TFRecord files: a folder of them, or one of them with its shards."""
    folder = containing_folder(path)
    if is_file(path) and not is_record_file(path):
        return None
    files = [path] if is_file(path) else [file for file in sorted(folder.iterdir()) if is_record_file(file)]
    files = [file for file in files if not is_left_over(file.name)]
    if not files:
        return None
    shards = re.compile(r"-[0-9]{5}-of-([0-9]{5})$")
    names = sorted({shards.sub(r"-?????-of-\1", file.name) for file in files})

    def source(name: str) -> Source:
        return Source("tfrecord", str(folder / name))

    label_map = label_map_beside(folder)
    if len(names) > 1 and not any(set(words_of(name)) & {*TRAINING, *HELD_OUT} for name in names):
        return _one_record_a_picture(folder, names, label_map)
    return recognize_lists("TFRecords", names, folder, source, label_map)


def _one_record_a_picture(folder: Path, names: Sequence[str], label_map: Path | None) -> RecognizedData:
    """Return the TFRecords of a folder as one source, as VoTT writes one file for each picture."""
    endings = {Path(name).suffix for name in names}
    if len(endings) > 1 or any("?" in name for name in names):
        raise DataError(f"{folder}: which of {', '.join(names[:8])} is for training? expected one named train")
    pattern = str(folder / f"*{endings.pop()}")
    return RecognizedData("TFRecords", Source("tfrecord", pattern), label_map=label_map)


def _coco(path: Path) -> RecognizedData | None:
    """Recognize COCO's JSON: one file, a folder of images with one, or `annotations/instances_*.json`."""
    files = [path] if path.suffix.lower() == ".json" and is_file(path) else _json_files(path)
    files = [file for file in files if is_coco_file(file) and find_layout(file) is None]
    if not files:
        return None
    by_name = {file.stem: file for file in files}

    def source(name: str) -> Source:
        images = _find_image_folder(by_name[name], containing_folder(path))
        return Source("coco", str(by_name[name]), image_folder=str(images))

    return recognize_lists("COCO", sorted(by_name), path, source)


def _json_files(path: Path) -> list[Path]:
    if not is_folder(path):
        return []
    files = files_in(path, ".json")
    if not files and is_folder(path / "annotations"):
        files = files_in(path / "annotations", ".json")
    detections = [file for file in files if file.stem.startswith("instances")]
    return detections or files


def _find_image_folder(file: Path, root: Path) -> Path:
    """Return the folder that a file's image names are relative to: the one with its first image, else a likely one."""
    words = [word for word in re.findall("[a-z]+[0-9]*", file.stem.lower()) if word not in ("instances", "annotations")]
    roots = dict.fromkeys((root, file.parent, file.parent.parent))
    words += [other for word in words for other in _SAME_LIST.get(word, ())]
    below = [place.format(word) for word in words for place in ("images/{}", "{}/images", "{}_images")]
    names = ("", *words, "images", "JPEGImages", "data", *below)
    candidates: list[Path] = [folder / name for folder in roots for name in names]
    # Only the beginning of the file, which may have hundreds of megabytes.
    first = re.search(r'"file_name"\s*:\s*"((?:[^"\\]|\\.)+)"', read_beginning(file, _BEGINNING))
    if first is not None:
        # Decodes JSON's escapes, such as \u00e9.
        named: str = json.loads(f'"{first[1]}"')
        for folder in candidates:
            if is_file(folder / named):
                return folder
    likely = [folder for folder in candidates[1:] if is_folder(folder) and _has_images(folder)]
    return likely[0] if likely else root


def _has_images(folder: Path) -> bool:
    return any(is_picture(item) for item in folder.iterdir() if not is_left_over(item.name))


def _layout(path: Path) -> RecognizedData | None:
    """Recognize the other layouts that are read as COCO's, a folder or file of one part each."""
    layout = find_layout(path)
    return None if layout is None else RecognizedData(layout.name, Source("coco", str(path)))


def _layout_parts(path: Path) -> RecognizedData | None:
    """Recognize files of one layout in a folder that are its lists, such as train_labels.csv and test_labels.csv."""
    named = [
        file for file in files_in(path) if set(words_of(file.stem)) & {*TRAINING, *HELD_OUT} and not is_picture(file)
    ]
    layouts = {file: layout for file in named if (layout := find_layout(file)) is not None}
    if len({layout.name for layout in layouts.values()}) != 1:
        return None
    by_name = {file.stem: file for file in layouts}
    kind = next(iter(layouts.values())).name

    def source(name: str) -> Source:
        folders = (path / "images" / word for word in words_of(name))
        own = next(
            (folder for folder in (*folders, *(path / word for word in words_of(name))) if is_folder(folder)), None
        )
        return Source("coco", str(by_name[name]), image_folder=str(own) if own else "")

    return recognize_lists(kind, sorted(by_name), path, source)


def _open_images(path: Path) -> RecognizedData | None:
    """Recognize Open Images' CSV of boxes, with the images beside it."""
    files = sorted(path.glob("*bbox*.csv")) if is_folder(path) else [path]
    if not files or files[0].suffix != ".csv" or not all(_is_open_images(file) for file in files):
        return None
    root = containing_folder(path)
    by_name = {file.stem: file for file in files}

    def source(name: str) -> Source:
        images = next((f for f in (*(root / word for word in words_of(name)), root / "images") if is_folder(f)), root)
        return Source("open_images", str(by_name[name]), image_folder=str(images))

    return recognize_lists("Open Images", sorted(by_name), path, source)


def _is_open_images(file: Path) -> bool:
    return "ImageID" in read_beginning(file).split("\n", 1)[0]


def _voc(path: Path) -> RecognizedData | None:
    """Recognize Pascal VOC: a folder of .xml files, with or without lists in `ImageSets/Main`."""
    if not is_folder(path) or _has_an_export(path) or not _has_voc_annotations(path):
        return None
    if not is_folder(path / "ImageSets") and (split := _split_folders(path)) is not None:
        return split
    folder = path / "ImageSets" / "Main"
    names = [file.stem for file in sorted(folder.glob("*.txt")) if not _is_class_list(file)]

    def source(name: str) -> Source:
        return Source("voc", str(path), name)

    if not names or (len(names) == 1 and names[0] in ("all", "default")):
        return RecognizedData("Pascal VOC", source(""))
    return recognize_lists("Pascal VOC", names, path, source)


def _has_an_export(folder: Path) -> bool:
    """Return whether a folder has a file of annotations that Roboflow, CVAT or FiftyOne exported."""
    files = (folder / name for name in (ROBOFLOW_ANNOTATIONS, CVAT_ANNOTATIONS, FIFTYONE_LABELS))
    return any(is_file(file) and is_coco_file(file) for file in files)


def _has_voc_annotations(path: Path) -> bool:
    """Return whether a folder has Pascal VOC annotations, in it or below it."""
    files = (file for file in files_below(path) if file.suffix.lower() == ".xml")
    return any(_VOC.search(read_beginning(file)) is not None for file in islice(files, _TRIED))


def _is_class_list(file: Path) -> bool:
    """Whether a VOC list is of one class, with a flag at the end of each line, not of images."""
    lines = [line for line in read_beginning(file).splitlines() if line.strip()]
    return bool(lines) and all(re.search(r"\s(-1|0|1)\s*$", line) for line in lines[:50])


def face_lists(path: Path) -> RecognizedData | None:
    """Recognize WIDER FACE's and FDDB's text files."""
    if is_wider_face(path):
        return RecognizedData("WIDER FACE", Source("wider_face", str(path)))
    return RecognizedData("FDDB", Source("fddb", str(path))) if is_fddb(path) else None


_RECOGNIZERS: tuple[Callable[[Path], RecognizedData | None], ...] = (
    face_lists,
    _yolo,
    _roboflow_coco,
    _records,
    _voc,
    _coco,
    _open_images,
    recognize_shards,
)
