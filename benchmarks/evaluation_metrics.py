"""COCO's metrics: ours, pycocotools' and faster-coco-eval's, on the same made-up detections: seconds and agreement.

    python benchmarks/evaluation_metrics.py [--images 5000] [--rounds 5] [--json FILE]

Images have COCO's 80 classes, 7 objects on average and 100 detections, a third of them near an object. Contenders take
turns in one process; a round is timed from detections in memory to the twelve metrics. What an evaluation takes of
memory as it grows is in `scaling.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "evaluation-metrics-cpu.json"
CLASSES, DETECTIONS, SIDE = 80, 100, 640
OTHERS = ("pycocotools", "faster_coco_eval")
Arrays = dict[str, np.ndarray]


def made_up(images: int) -> Iterator[Arrays]:
    """Yield the objects and detections of each image."""
    random = np.random.default_rng(0)
    for _ in range(images):
        count = int(random.poisson(7))
        sides = np.exp(random.uniform(np.log(8), np.log(400), (count, 2)))
        corners = random.uniform(0, 1, (count, 2)) * (SIDE - sides)
        objects = np.concatenate([corners, corners + sides], 1).astype(np.float32)
        labels = np.minimum(random.geometric(0.05, count) - 1, CLASSES - 1)
        near = random.integers(0, max(count, 1), DETECTIONS)
        sides = np.exp(random.uniform(np.log(8), np.log(400), (DETECTIONS, 2)))
        corners = random.uniform(0, 1, (DETECTIONS, 2)) * (SIDE - sides)
        boxes = np.concatenate([corners, corners + sides], 1)
        classes = np.minimum(random.geometric(0.05, DETECTIONS) - 1, CLASSES - 1)
        about = (random.random(DETECTIONS) < 1 / 3) & (count > 0)
        moved = np.exp(random.normal(0, 0.1, (DETECTIONS, 4)))
        boxes[about] = (objects[near[about]] * moved[about]) if count else boxes[about]
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
        classes[about] = labels[near[about]] if count else classes[about]
        scores = np.sort(random.random(DETECTIONS).astype(np.float32) * np.where(about, 1, 0.6).astype(np.float32))
        yield {
            "objects": objects,
            "labels": labels.astype(np.int64),
            "crowd": random.random(count) < 0.02,
            "boxes": boxes.astype(np.float32),
            "classes": classes.astype(np.int64),
            "scores": scores[::-1].astype(np.float32),
        }


def ours(images: list[Arrays]) -> Callable[[], list[float]]:
    """Return our evaluation."""
    from boxwright.evaluation.metrics.coco import CocoMetrics
    from boxwright.types import Categories, Category

    categories = Categories(tuple(Category(n, n + 1, str(n)) for n in range(CLASSES)))
    given = [as_ours(image) for image in images]

    def evaluate() -> list[float]:
        metrics = CocoMetrics(categories)
        for sample, detections in given:
            metrics.add(sample, detections)
        return [float(value) for value in metrics.compute().values.values()]

    return evaluate


def as_ours(image: Arrays) -> tuple[Any, Any]:
    """Return an image's objects and detections as our evaluation takes them."""
    from boxwright.types import Detections, Sample

    pixels = np.zeros((SIDE, SIDE, 0), np.uint8)
    sample = Sample(pixels, image["objects"], image["labels"], is_crowd=image["crowd"])
    return sample, Detections(image["boxes"], image["scores"], image["classes"], (SIDE, SIDE))


def theirs(images: list[Arrays], name: str) -> Callable[[], list[float]]:
    """Return the evaluation of pycocotools, or of a package with its interface."""
    if name == "pycocotools":
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    else:
        from faster_coco_eval import COCO
        from faster_coco_eval import COCOeval_faster as COCOeval

    truth: dict[str, Any] = {"images": [], "annotations": [], "categories": []}
    truth["categories"] = [{"id": n, "name": str(n)} for n in range(CLASSES)]
    rows: list[dict[str, Any]] = []
    for number, image in enumerate(images):
        truth["images"].append({"id": number, "height": SIDE, "width": SIDE})
        for box, label, crowd in zip(image["objects"].astype(float), image["labels"], image["crowd"], strict=True):
            x, y, width, height = box[0], box[1], box[2] - box[0], box[3] - box[1]
            row = {"image_id": number, "category_id": int(label), "bbox": [x, y, width, height], "iscrowd": int(crowd)}
            area = float(np.float32(width) * np.float32(height))
            truth["annotations"].append({**row, "id": len(truth["annotations"]) + 1, "area": area})
        for box, label, score in zip(
            image["boxes"].astype(float), image["classes"], image["scores"].tolist(), strict=True
        ):
            x, y, width, height = box[0], box[1], box[2] - box[0], box[3] - box[1]
            row = {"image_id": number, "category_id": int(label), "bbox": [x, y, width, height], "score": score}
            rows.append({**row, "id": len(rows) + 1, "area": width * height, "iscrowd": 0})

    def evaluate() -> list[float]:
        with contextlib.redirect_stdout(io.StringIO()):
            objects, results = COCO(), COCO()
            objects.dataset, results.dataset = truth, {**truth, "annotations": rows}
            objects.createIndex()
            results.createIndex()
            evaluator = COCOeval(objects, results, "bbox")
            evaluator.evaluate()
            evaluator.accumulate()
            evaluator.summarize()
        return [float(value) for value in evaluator.stats[:12]]

    return evaluate


def race(count: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of each contender's rounds, and how far its metrics are from ours."""
    images = list(made_up(count))
    contenders = {"boxwright": ours(images)} | {name: theirs(images, name) for name in OTHERS}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    values: dict[str, list[float]] = {}
    for number in range(rounds):
        for name in list(contenders) if number % 2 else reversed(contenders):
            gc.collect()
            began = time.perf_counter()
            values[name] = contenders[name]()
            seconds[name].append(round(time.perf_counter() - began, 3))
    apart = {name: float(np.abs(np.subtract(other, values["boxwright"])).max()) for name, other in values.items()}
    return {"images": count, "seconds": seconds, "apart": apart, "AP": values["boxwright"][0]}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS)
    given = parser.parse_args()
    results = race(given.images, given.rounds)
    for name, rounds in results["seconds"].items():
        ratios = [own / other for own, other in zip(results["seconds"]["boxwright"], rounds, strict=True)]
        print(
            f"{name:18} {statistics.median(rounds):7.2f} s; ours takes {statistics.median(ratios):.2f} of it; "
            f"metrics {results['apart'][name]:.1e} apart"
        )
    given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
