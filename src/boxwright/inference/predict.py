"""Detecting objects in image files: pictures and COCO-style results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.data.image_io import encode_png, read_image
from boxwright.errors import DataError
from boxwright.evaluation.pictures import draw_detections
from boxwright.evaluation.results import detection_rows
from boxwright.files import unfinished, unique_stem, write_whole
from boxwright.inference.settings import PredictionSettings
from boxwright.types import FoundObjects

__all__ = ["Finder", "predict_files"]

Finder = Callable[[Sequence[NDArray[np.uint8]]], list[FoundObjects]]
Progress = Callable[[Iterable[Path]], Iterable[Path]]
_DEFAULTS = PredictionSettings()


def _all(files: Iterable[Path]) -> Iterable[Path]:
    return files


def predict_files(
    detect: Finder,
    files: Sequence[Path],
    out: str | Path,
    settings: PredictionSettings = _DEFAULTS,
    progress: Progress = _all,
) -> list[dict[str, Any]]:
    """Detect objects in files; draw a picture of each and write `detections.json`.

    Images are taken upright, as people see them: an EXIF orientation is applied.

    Args:
        detect: Finds objects in pictures.
        files: The images.
        out: The folder for results; it is made.
        settings: What is kept and drawn.
        progress: Wraps the files, to show how far it is.

    Returns:
        COCO-style rows, with the file's name and the class's name.

    Raises:
        DataError: Where an image cannot be read; results of those before it are written, and the folder
            stays marked as unfinished, as it does where anything else ends the work.
        OutputError: Where the disk is full or the folder cannot be written.
    """
    names = _picture_names(files, Path(out))
    rows: list[dict[str, Any]] = []
    with unfinished(out, "predictions") as folder:
        try:
            for number, file in enumerate(progress(files)):
                image = read_image(file, upright=True)
                (found,) = detect([image])
                found = found.above(settings.min_score)
                picture = draw_detections(image, found, settings.min_score, settings.max_boxes)
                write_whole(folder / names[number], encode_png(picture))
                rows += _rows(found, number, file)
        finally:
            write_whole(folder / "detections.json", json.dumps(rows, indent=1) + "\n")
    return rows


def _picture_names(files: Sequence[Path], out: Path) -> list[str]:
    """Name a picture for each image, all different, none of them over one of the images."""
    taken: set[str] = set()
    names = [f"{unique_stem(file.stem, taken)}.png" for file in files]
    images = {file.resolve() for file in files}
    over = next((name for name in names if (out / name).resolve() in images), None)
    if over is not None:
        raise DataError(f"{out / over} is one of the images; write to another folder")
    return names


def _rows(found: FoundObjects, number: int, file: Path) -> list[dict[str, Any]]:
    rows = detection_rows(found, str(number), found.categories)
    return [
        {**row, "file_name": str(file), "category_name": name} for row, name in zip(rows, found.names(), strict=True)
    ]
