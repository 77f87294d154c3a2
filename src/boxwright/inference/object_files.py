"""Files of single objects: pictures cut out of an image, and YOLO's labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import OutputError
from boxwright.base.files import is_folder, make_folder, unique_stem, write_whole
from boxwright.data.image_io import encode_picture
from boxwright.types import Array, Categories, Detections
from boxwright.types.categories import titles

CROPS, LABELS, CLASSES = "crops", "labels", "classes.txt"
# File systems take these in names, and shells need at most quotes for them.
IN_NAMES = " ()[]{}+,;=@#&!~'"


def require_unused(folder: Path, names: Sequence[str]) -> None:
    """Raise an OutputError if one of a folder's own folders has files, which may be labels that somebody drew."""
    for name in names:
        if is_folder(folder / name) and any((folder / name).iterdir()):
            raise OutputError(f"{folder / name}: has files already; remove this folder, or write to another with --out")


def write_crops(folder: Path, stem: str, image: NDArray[np.uint8], detections: Detections[Array], suffix: str) -> None:
    """Write each object as `CLASS/STEM_1.jpg`, `CLASS/STEM_2.jpg` …, best first, except those without a whole pixel.

    Args:
        folder: Where the classes' folders are.
        stem: The start of each name; it may begin with a folder.
        image: uint8 [H, W, C], of which the first three channels are written.
        detections: In pixels of the image.
        suffix: ".jpg" or ".png".

    Raises:
        OutputError: If the disk is full or a folder cannot be written.
    """
    height, width = image.shape[:2]
    corners = np.clip(np.rint(detections.boxes), 0, [width, height, width, height]).astype(np.int64)
    for number, (name, (left, top, right, bottom)) in enumerate(
        zip(detections.names(), corners.tolist(), strict=True), start=1
    ):
        if right > left and bottom > top:
            path = folder / unique_stem(name, set(), IN_NAMES) / f"{stem}_{number}{suffix}"
            make_folder(path.parent)
            crop = np.ascontiguousarray(image[top:bottom, left:right, :3])
            write_whole(path, encode_picture(crop, suffix))


def write_yolo_labels(path: Path, detections: Detections[Array]) -> None:
    """Write a line for each object: its label, from 0, and center, width and height of its box, in 0..1 of the image.

    Boxes are cut at the image's border. An image without objects gets an empty file, which says that it has none.

    Args:
        path: The file, in a folder that is created.
        detections: In pixels of the image.

    Raises:
        OutputError: If the disk is full or the folder cannot be written.
    """
    height, width = detections.image_size
    sides = np.array([width, height], np.float64)
    corners = np.clip(detections.boxes.astype(np.float64).reshape(-1, 2, 2) / sides, 0, 1)
    boxes = np.concatenate([corners.mean(1), corners[:, 1] - corners[:, 0]], 1)
    lines = [
        f"{label} {' '.join(f'{value:.6f}' for value in box)}\n"
        for label, box in zip(detections.labels.tolist(), boxes.tolist(), strict=True)
    ]
    make_folder(path.parent)
    write_whole(path, "".join(lines))


def write_class_names(path: Path, categories: Categories) -> None:
    """Write the name of each label in a line, in the order of the labels, as readers of YOLO's labels expect."""
    names = titles(categories, list(range(categories.num_slots)))
    write_whole(path, "".join(f"{' '.join(name.split())}\n" for name in names))
