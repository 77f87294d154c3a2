"""Labels as lines of text, a file for each picture: KITTI's, VisDrone's, and those of OIDv4 ToolKit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import file_size, is_folder
from boxwright.data.layouts.content import Content, files_in, find_picture, folders_in, read_beginning
from boxwright.data.picture_files import PictureFiles
from boxwright.data.reading import is_number, numbered_lines, parse_numbers, whole_number

_TRIED = 20


def _first_line(files: Iterable[Path]) -> str:
    """Return the first line of the first file that does not begin with a blank one."""
    lines = (read_beginning(file).split("\n", 1)[0].strip() for file in files)
    return next((line for line in lines if line), "")


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """Yield each line that is not blank, after its place."""
    for number, line in numbered_lines(file):
        yield f"{file}: line {number}", line


# KITTI: `label_2/000000.txt` beside `image_2`, or `labels` beside `images` as in NVIDIA's TAO. A line is
# `type truncated occluded alpha x_min y_min x_max y_max`, then seven numbers in three dimensions, and a score in
# results. https://www.cvlibs.net/datasets/kitti/eval_object.php
_KITTI_FOLDERS = (("label_2", "image_2"), ("labels", "images"))
# Regions whose objects were not labeled.
_DONT_CARE = "DontCare"
_KITTI_COUNTS = (15, 16)


def is_kitti(path: Path) -> bool:
    """Return whether a folder, or `training` in it, has KITTI's labels beside pictures."""
    return _kitti_folders(path) is not None


def _kitti_folders(path: Path) -> tuple[Path, Path] | None:
    """Return the folders of labels and of pictures."""
    for base in (path, path / "training"):
        for labels, images in _KITTI_FOLDERS:
            if is_folder(base / labels) and is_folder(base / images) and _has_kitti_lines(base / labels):
                return base / labels, base / images
    return None


def _has_kitti_lines(folder: Path) -> bool:
    """Return whether the first line of labels is KITTI's: YOLO's begin with a number."""
    words = _first_line(files_in(folder, ".txt")[:_TRIED]).split()
    return len(words) in _KITTI_COUNTS and not words[0].replace(".", "").isdigit()


def read_kitti(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return KITTI's labels as the content of a COCO file; DontCare regions are to be ignored.

    Raises:
        DataError: If a line is not KITTI's.
    """
    folders = _kitti_folders(path)
    if folders is None:
        raise DataError(f"{path}: no label_2 with KITTI's labels beside image_2")
    labels, images = folders
    prefix = "" if image_folder else f"{images.relative_to(path).as_posix()}/"
    pictures = PictureFiles(image_folder or images)
    content = Content(path)
    for file in files_in(labels, ".txt"):
        image = content.add_image(prefix + find_picture(pictures, file.stem, ".png"))
        for where, line in _lines(file):
            kind, *rest = line.split()
            if len(rest) + 1 not in _KITTI_COUNTS:
                raise DataError(f"{where}: expected a class and 14 or 15 numbers, found {len(rest)}")
            x_min, y_min, x_max, y_max = parse_numbers(rest[3:7], where)
            if kind == _DONT_CARE:
                content.ignore(image, (x_min, y_min, x_max, y_max))
            else:
                content.add(image, kind, (x_min, y_min, x_max, y_max), where)
    return content.as_coco()


# VisDrone: `annotations/NAME.txt` beside `images`, a line of eight numbers with commas for each object:
# `x,y,width,height,score,category,truncation,occlusion`. https://github.com/VisDrone/VisDrone2018-DET-toolkit
# Numbers count the classes from 1, in this order; 0 are regions to ignore.
_VISDRONE_CLASSES = (
    *("pedestrian", "people", "bicycle", "car", "van", "truck"),
    *("tricycle", "awning-tricycle", "bus", "motor", "others"),
)
_VISDRONE_COLUMNS = 8


def is_visdrone(path: Path) -> bool:
    """Return whether a folder has VisDrone's labels in `annotations`, beside `images`."""
    if not is_folder(path / "annotations") or not is_folder(path / "images"):
        return False
    words = _visdrone_words(_first_line(files_in(path / "annotations", ".txt")[:_TRIED]))
    return len(words) == _VISDRONE_COLUMNS and all(map(is_number, words))


def _visdrone_words(line: str) -> list[str]:
    # Some lines end in a comma.
    return line.rstrip(",").split(",")


def read_visdrone(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return VisDrone's labels as the content of a COCO file.

    Category 0 and objects of score 0 are regions to ignore, as in VisDrone's own evaluation.

    Raises:
        DataError: If a line is not VisDrone's.
    """
    pictures = PictureFiles(image_folder or path / "images")
    prefix = "" if image_folder else "images/"
    content = Content(path, _VISDRONE_CLASSES)
    for file in files_in(path / "annotations", ".txt"):
        image = content.add_image(prefix + find_picture(pictures, file.stem, ".jpg"))
        for where, line in _lines(file):
            words = _visdrone_words(line)
            if len(words) != _VISDRONE_COLUMNS:
                raise DataError(f"{where}: expected {_VISDRONE_COLUMNS} numbers, found {line[:60]!r}")
            x, y, width, height, score, category, *_ = parse_numbers(words, where)
            box = (x, y, x + width, y + height)
            label = whole_number(category, f"{where}: category")
            if not 0 <= label <= len(_VISDRONE_CLASSES):
                raise DataError(f"{where}: category: expected 0 to {len(_VISDRONE_CLASSES)}, found {label}")
            if label and score:
                content.add(image, _VISDRONE_CLASSES[label - 1], box, where)
            else:
                content.ignore(image, box)
    return content.as_coco()


# OIDv4 ToolKit's downloads of Open Images: `CLASS/Label/ID.txt` below `CLASS/ID.jpg`, a class and corners in pixels a
# line. https://github.com/EscVM/OIDv4_ToolKit
_OID_LABELS = "Label"


def is_oid_toolkit(path: Path) -> bool:
    """Return whether a folder has folders of classes, or is one, with OIDv4 ToolKit's labels."""
    folders = _oid_class_folders(path)[:_TRIED]
    line = _first_line(file for folder in folders for file in files_in(folder / _OID_LABELS, ".txt")[:_TRIED])
    words = line.rsplit(maxsplit=4)
    return len(words) == 5 and not is_number(words[0]) and all(map(is_number, words[1:]))


def _oid_class_folders(path: Path) -> list[Path]:
    return [folder for folder in (path, *folders_in(path)) if is_folder(folder / _OID_LABELS)]


def read_oid_toolkit(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return OIDv4 ToolKit's labels as the content of a COCO file.

    A picture of two classes lies in both their folders, each time with the labels of one. It is read once with both:
    otherwise the objects of the one class would be background of the other.

    Raises:
        DataError: If a line is not a class and four numbers.
    """
    base = image_folder or path
    content = Content(path)
    first: dict[tuple[str, int], str] = {}
    for folder in _oid_class_folders(path):
        inside = folder.relative_to(path)
        pictures = PictureFiles(base / inside)
        for file in files_in(folder / _OID_LABELS, ".txt"):
            name = (inside / find_picture(pictures, file.stem, ".jpg")).as_posix()
            image = content.add_image(first.setdefault((file.stem, file_size(base / name)), name))
            for where, line in _lines(file):
                # Names of classes have spaces.
                words = line.rsplit(maxsplit=4)
                if len(words) != 5:
                    raise DataError(f"{where}: expected a class and four numbers, found {line[:60]!r}")
                x_min, y_min, x_max, y_max = parse_numbers(words[1:], where)
                content.add(image, words[0], (x_min, y_min, x_max, y_max), where)
    return content.as_coco()
