"""Pictures for layouts, and what is read of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

from boxwright.data.coco import CocoDataset

WIDTH, HEIGHT = 100, 80


def draw(folder: Path, *names: str, size: tuple[int, int] = (WIDTH, HEIGHT)) -> None:
    """Write plain pictures."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (9, 99, 199)).save(folder / name)


def write_json(path: Path, content: Any) -> Path:
    """Write a file, and its folder if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def objects_in(path: Path, image_folder: Path | None = None) -> dict[str, list[tuple[str, list[float]]]]:
    """Return each picture's objects, with their class and box; a region to ignore is of the class `ignore CLASS`."""
    data = CocoDataset(path, image_folder)
    names = {category.label: category.name for category in data.categories}
    read = {}
    for index in range(len(data)):
        sample = data[index]
        rows = zip(sample.labels.tolist(), sample.boxes.tolist(), sample.is_crowd.tolist(), strict=True)
        read[sample.filename] = [(f"ignore {names[k]}" if crowd else names[k], box) for k, box, crowd in rows]
    return read


def classes_in(path: Path) -> list[str]:
    """Return the names of the classes in their order."""
    return [category.name for category in CocoDataset(path).categories]
