"""KITTI's detection labels: `label_2/000000.txt` beside `image_2`, or `labels` beside `images` as in NVIDIA's TAO.

A line is `type truncated occluded alpha x_min y_min x_max y_max`, then seven numbers in three dimensions, and a score
in results. https://www.cvlibs.net/datasets/kitti/eval_object.php
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import is_folder
from boxwright.data.layouts.content import Content
from boxwright.data.layouts.places import beginning_of, files_in, picture_of
from boxwright.data.layouts.text_numbers import parse_numbers
from boxwright.data.picture_files import PictureFiles
from boxwright.data.reading import numbered_lines

_FOLDERS = (("label_2", "image_2"), ("labels", "images"))
# Regions whose objects were not labeled.
_DONT_CARE = "DontCare"
_COUNTS = (15, 16)
_TRIED = 20


def is_kitti(path: Path) -> bool:
    """Return whether a folder, or `training` in it, has KITTI's labels beside pictures."""
    return _folders(path) is not None


def _folders(path: Path) -> tuple[Path, Path] | None:
    """Return the folders of labels and of pictures."""
    for base in (path, path / "training"):
        for labels, images in _FOLDERS:
            if is_folder(base / labels) and is_folder(base / images) and _has_lines(base / labels):
                return base / labels, base / images
    return None


def _has_lines(folder: Path) -> bool:
    """Return whether the first line of labels is KITTI's: YOLO's begin with a number."""
    texts = (beginning_of(file).split("\n", 1)[0].split() for file in files_in(folder, ".txt")[:_TRIED])
    first = next((words for words in texts if words), [])
    return len(first) in _COUNTS and not first[0].replace(".", "").isdigit()


def read_kitti(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return KITTI's labels as the content of a COCO file; DontCare regions are to be ignored.

    Raises:
        DataError: If a line is not KITTI's.
    """
    folders = _folders(path)
    if folders is None:
        raise DataError(f"{path}: no label_2 with KITTI's labels beside image_2")
    labels, images = folders
    prefix = "" if image_folder else f"{images.relative_to(path).as_posix()}/"
    pictures = PictureFiles(image_folder or images)
    content = Content(path)
    for file in files_in(labels, ".txt"):
        image = content.add_image(prefix + picture_of(pictures, file.stem, ".png"))
        for number, line in numbered_lines(file):
            where = f"{file}: line {number}"
            kind, *rest = line.split()
            if len(rest) + 1 not in _COUNTS:
                raise DataError(f"{where}: expected a class and 14 or 15 numbers, found {len(rest)}")
            x_min, y_min, x_max, y_max = parse_numbers(rest[3:7], where)
            if kind == _DONT_CARE:
                content.ignore(image, (x_min, y_min, x_max, y_max))
            else:
                content.add(image, kind, (x_min, y_min, x_max, y_max), where)
    return content.as_coco()
