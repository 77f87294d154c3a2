"""Detecting objects in image files: pictures and COCO-style results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from boxwright.data.image_io import read_image
from boxwright.errors import DataError
from boxwright.evaluation.evaluator import detection_rows, draw_detections
from boxwright.models.detector import Detector
from boxwright.models.multi_scale import MultiScaleDetector
from boxwright.types import Detections

__all__ = ["find_images", "predict_files"]

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
Progress = Callable[[Iterable[Path]], Iterable[Path]]


def find_images(paths: Sequence[str | Path]) -> list[Path]:
    """List image files; a folder stands for the images in it.

    Args:
        paths: Files and folders.

    Returns:
        The files, in the order given, those of a folder by name.

    Raises:
        DataError: Where a path does not exist or a folder has no image.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if file.suffix.lower() in _SUFFIXES)
            if not found:
                raise DataError(f"{path}: no image in this folder")
            files += found
        elif path.is_file():
            files.append(path)
        else:
            raise DataError(f"{path}: no such file")
    return files


def _all(files: Iterable[Path]) -> Iterable[Path]:
    return files


def predict_files(
    detector: Detector | MultiScaleDetector,
    files: Sequence[Path],
    out: str | Path,
    *,
    min_score: float = 0.5,
    max_boxes: int = 100,
    progress: Progress = _all,
) -> list[dict[str, Any]]:
    """Detect objects in files; draw a picture of each and write `detections.json`.

    Images are taken upright, as people see them: an EXIF orientation is applied.

    Args:
        detector: The detector.
        files: The images.
        out: The folder for results; it is made.
        min_score: The least score that is drawn and written.
        max_boxes: The most boxes that are drawn in a picture.
        progress: Wraps the files, to show how far it is.

    Returns:
        COCO-style rows, with the file's name and the class's name.

    Raises:
        DataError: Where an image cannot be read; results of those before it are written.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    taken: set[str] = set()
    try:
        for number, file in enumerate(progress(files)):
            image = read_image(file, upright=True)
            (found,) = detector.detect([image])
            found = found.above(min_score)
            rows += _rows(found, number, file)
            name = file.stem if file.stem not in taken else f"{file.stem}-{number}"
            taken.add(name)
            if any((out / f"{name}.png").resolve() == other.resolve() for other in files):
                raise DataError(f"{out / name}.png is one of the images; write to another folder")
            Image.fromarray(draw_detections(image, found, min_score, max_boxes)).save(out / f"{name}.png")
    finally:
        (out / "detections.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return rows


def _rows(found: Detections, number: int, file: Path) -> list[dict[str, Any]]:
    rows = detection_rows(found, str(number), found.categories)
    return [
        {**row, "file_name": str(file), "category_name": name} for row, name in zip(rows, found.names(), strict=True)
    ]
