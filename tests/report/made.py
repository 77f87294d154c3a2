"""Truth and detections that are made up, without a detector or its training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from boxwright.data.coco import CocoDataset
from boxwright.report.tables import Tables, read_tables

Rows = list[dict[str, Any]]


def truth(
    images: Sequence[tuple[int, int]],
    objects: Sequence[tuple[int, int, Sequence[float]]],
    classes: Sequence[str],
    crowds: Sequence[int] = (),
) -> dict[str, Any]:
    """COCO's truth: (width, height) of images; image, class and xywh of objects, all counted from 0."""
    return {
        "images": [
            {"id": number + 1, "file_name": f"{number + 1}.jpg", "width": size[0], "height": size[1]}
            for number, size in enumerate(images)
        ],
        "annotations": [
            {
                "id": number + 1,
                "image_id": image + 1,
                "category_id": label + 1,
                "bbox": [float(one) for one in box],
                "area": float(box[2] * box[3]),
                "iscrowd": int(number in crowds),
            }
            for number, (image, label, box) in enumerate(objects)
        ],
        "categories": [{"id": number + 1, "name": name} for number, name in enumerate(classes)],
    }


def found(rows: Sequence[tuple[int, int, Sequence[float], float]]) -> Rows:
    """COCO's results: image, class, xywh and score, counted from 0."""
    return [
        {"image_id": image + 1, "category_id": label + 1, "bbox": [float(one) for one in box], "score": score}
        for image, label, box, score in rows
    ]


def write(folder: Path, content: dict[str, Any], rows: Rows) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "instances.json").write_text(json.dumps(content))
    (folder / "results.json").write_text(json.dumps(rows))
    return folder / "instances.json", folder / "results.json"


def tables(folder: Path, content: dict[str, Any], rows: Rows) -> Tables:
    truth_file, results = write(folder, content, rows)
    return read_tables(CocoDataset(truth_file, None, allow_paths_outside=True), results)


def random_boxes(random: np.random.Generator, count: int, size: tuple[int, int]) -> NDArray[np.float64]:
    sides = np.exp(random.uniform(np.log(8), np.log(min(size) / 2), (count, 2)))
    corners = random.uniform(0, 1, (count, 2)) * (np.array(size) - sides)
    return np.concatenate([corners, sides], 1).round(2)


def messy(seed: int, images: int = 40, classes: int = 4, crowded: bool = True) -> tuple[dict[str, Any], Rows]:
    """Truth, and detections with every kind of error: moved, of other classes, twice, missing, of nothing; ties too."""
    random = np.random.default_rng(seed)
    size = (320, 240)
    objects: list[tuple[int, int, list[float]]] = []
    rows: list[tuple[int, int, list[float], float]] = []
    for image in range(images):
        for box in random_boxes(random, int(random.integers(0, 8)), size):
            # The last class has no objects, and detections nevertheless.
            label = int(random.integers(0, classes - 1))
            objects.append((image, label, box.tolist()))
            for _ in range(int(random.integers(0, 3))):
                moved = box.copy()
                moved[:2] += random.normal(0, 0.15, 2) * box[2:]
                moved[2:] *= np.exp(random.normal(0, 0.15, 2))
                other = int(random.integers(0, classes)) if random.uniform() < 0.25 else label
                rows.append((image, other, moved.round(2).tolist(), float(round(random.uniform(0, 1), 2))))
        rows += [
            (image, int(random.integers(0, classes)), box.tolist(), float(round(random.uniform(), 2)))
            for box in random_boxes(random, int(random.integers(0, 4)), size)
        ]
    crowds = random.choice(len(objects), 5, replace=False).tolist() if crowded else []
    return truth([size] * images, objects, [f"class {n}" for n in range(classes)], crowds), found(rows)


def draw(folder: Path, content: dict[str, Any], seed: int = 0) -> None:
    """Write an image file for each image: noise, with objects as lighter boxes."""
    random = np.random.default_rng(seed)
    for image in content["images"]:
        pixels = random.integers(0, 90, (image["height"], image["width"], 3), np.uint8)
        for row in content["annotations"]:
            if row["image_id"] == image["id"]:
                x, y, width, height = (round(one) for one in row["bbox"])
                pixels[y : y + height, x : x + width] += 100
        Image.fromarray(pixels).save(folder / image["file_name"])
