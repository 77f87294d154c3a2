"""What COCO's metrics cost, ours and pycocotools': made-up pictures of 7 objects and 100 detections of 80 classes.

    python benchmarks/archive/metrics.py [--pictures 1000] [--rounds 3]

Both are timed in turn, in one process; their twelve numbers are compared. Pycocotools gives numbers, ours the curves of
each class and which detection found which object too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from boxwright.evaluation.metrics.coco import CocoMetrics
from boxwright.types import Categories, Category, FoundObjects, Sample

HERE = Path(__file__).parent
CLASSES, OBJECTS, DETECTIONS, SIDE = 80, 7, 100, 640
CATEGORIES = Categories(tuple(Category(label, label + 1, f"class {label}") for label in range(CLASSES)))
Picture = tuple[Sample, FoundObjects]


def made_up(count: int) -> list[Picture]:
    """Draw pictures in which every object is found, more or less in its place, among boxes of nothing."""
    rng = np.random.default_rng(0)

    def boxes(number: int) -> NDArray[np.float64]:
        corners = rng.uniform(0, SIDE - 150, (number, 2))
        return np.concatenate([corners, corners + rng.uniform(5, 150, (number, 2))], 1)

    pictures = []
    for index in range(count):
        truth, labels = boxes(OBJECTS), rng.integers(0, CLASSES, OBJECTS)
        found = np.concatenate([truth + rng.normal(0, 4, truth.shape), boxes(DETECTIONS - OBJECTS)])
        found[:, 2:] = np.maximum(found[:, 2:], found[:, :2] + 1)
        sample = Sample(np.zeros((SIDE, SIDE, 0), np.uint8), truth.astype(np.float32), labels, id=str(index))
        scores = np.concatenate([rng.uniform(0.3, 1, OBJECTS), rng.uniform(0, 0.6, DETECTIONS - OBJECTS)])
        classes = np.concatenate([labels, rng.integers(0, CLASSES, DETECTIONS - OBJECTS)])
        detections = FoundObjects(found.astype(np.float32), scores.astype(np.float32), classes, (SIDE, SIDE))
        pictures.append((sample, detections))
    return pictures


def ours(pictures: list[Picture]) -> list[float]:
    """Return the twelve numbers."""
    metrics = CocoMetrics(CATEGORIES)
    for picture in pictures:
        metrics.add(*picture)
    return list(metrics.compute().values.values())


def theirs(pictures: list[Picture]) -> list[float]:
    """Return the twelve numbers as pycocotools computes them."""
    truth = COCO()
    truth.dataset = {
        "images": [{"id": number} for number in range(len(pictures))],
        "annotations": [
            {
                "id": number * OBJECTS + row + 1,
                "image_id": number,
                "category_id": int(sample.labels[row]),
                "bbox": with_sides(box),
                "area": float(sample.areas[row]),
                "iscrowd": 0,
            }
            for number, (sample, _) in enumerate(pictures)
            for row, box in enumerate(sample.boxes)
        ],
        "categories": [{"id": label} for label in range(CLASSES)],
    }
    truth.createIndex()
    rows = [
        {"image_id": number, "category_id": int(label), "bbox": with_sides(box), "score": float(score)}
        for number, (_, found) in enumerate(pictures)
        for box, score, label in zip(found.boxes, found.scores, found.labels, strict=True)
    ]
    evaluation = COCOeval(truth, truth.loadRes(rows), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return [float(value) for value in evaluation.stats]


def with_sides(box: NDArray[np.float32]) -> list[float]:
    """Return COCO's form of a box: a corner and sides."""
    left, top, right, bottom = (float(value) for value in box)
    return [left, top, right - left, bottom - top]


def main() -> None:
    """Measure, print, and write the results beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    pictures = made_up(chosen.pictures)
    ways: dict[str, Callable[[list[Picture]], list[float]]] = {"boxwright": ours, "pycocotools": theirs}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    numbers: dict[str, list[float]] = {}
    for _ in range(chosen.rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()):
                numbers[name] = way(pictures)
            seconds[name].append(time.perf_counter() - began)
    np.testing.assert_allclose(numbers["boxwright"], numbers["pycocotools"], atol=1e-9)
    ratios = [mine / other for mine, other in zip(*seconds.values(), strict=True)]
    found = {
        "pictures": chosen.pictures,
        "seconds": {name: round(min(times), 2) for name, times in seconds.items()},
        "ratio": {"least": round(min(ratios), 3), "median": round(median(ratios), 3)},
        "mAP": round(numbers["boxwright"][0], 4),
        "load": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(found, indent=2))
    (HERE / "results" / "metrics.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
