"""COCO's metrics: ours, ours of another checkout, pycocotools' and faster-coco-eval's, on the same made-up detections.

    python benchmarks/evaluation_metrics.py [--images 5000] [--rounds 5] [--before CHECKOUT] [--json FILE]
    python benchmarks/evaluation_metrics.py --memory [--images 118287] [--json FILE]

Images have COCO's 80 classes, 7 objects on average and 100 detections, a third of them near an object. Contenders take
turns: each has a process of its own, which has built its input before the first round and waits for the others. A round
is timed from detections in memory to the twelve metrics; the other checkout's package is imported from its `src`. All
must agree to 1e-9.

With --memory, images are made one by one and evaluated as `boxwright evaluate` does, all but the detector: the metrics,
and the folder with detections.json and truth.json. The peak of resident memory above the start is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
CLASSES, DETECTIONS, SIDE = 80, 100, 640
CONTENDERS = ("boxwright", "pycocotools", "faster_coco_eval")
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
        found = np.minimum(random.geometric(0.05, DETECTIONS) - 1, CLASSES - 1)
        about = (random.random(DETECTIONS) < 1 / 3) & (count > 0)
        moved = np.exp(random.normal(0, 0.1, (DETECTIONS, 4)))
        boxes[about] = (objects[near[about]] * moved[about]) if count else boxes[about]
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
        found[about] = labels[near[about]] if count else found[about]
        scores = np.sort(random.random(DETECTIONS).astype(np.float32) * np.where(about, 1, 0.6).astype(np.float32))
        yield {
            "objects": objects,
            "labels": labels.astype(np.int64),
            "crowd": random.random(count) < 0.02,
            "boxes": boxes.astype(np.float32),
            "found": found.astype(np.int64),
            "scores": scores[::-1].astype(np.float32),
        }


def as_ours(one: Arrays, name: str = "") -> tuple[Any, Any]:
    """Return an image's objects and detections as our evaluation takes them."""
    from boxwright.types import FoundObjects, Sample

    pixels = np.zeros((SIDE, SIDE, 0), np.uint8)
    sample = Sample(pixels, one["objects"], one["labels"], is_crowd=one["crowd"], id=name)
    return sample, FoundObjects(one["boxes"], one["scores"], one["found"], (SIDE, SIDE))


def classes() -> Any:
    """Return the made-up classes."""
    from boxwright.types import Categories, Category

    return Categories(tuple(Category(n, n + 1, str(n)) for n in range(CLASSES)))


def ours(images: list[Arrays]) -> Callable[[], list[float]]:
    """Return our evaluation."""
    from boxwright.evaluation.metrics.coco import CocoMetrics

    categories, given = classes(), [as_ours(one) for one in images]

    def evaluate() -> list[float]:
        metrics = CocoMetrics(categories)
        for one in given:
            metrics.add(*one)
        return [float(value) for value in metrics.compute().values.values()]

    return evaluate


class MadeUp:
    """As many images without pixels; each is made when it is read, its detections with it."""

    name = "made up"

    def __init__(self, count: int) -> None:
        """Make none yet."""
        self._count, self._found = count, deque[Any]()
        self.categories = classes()

    def __len__(self) -> int:
        return self._count

    def read(self, _: object, indices: Sequence[int]) -> Iterator[Any]:
        """Yield the samples of all indices."""
        for index, one in zip(indices, made_up(self._count), strict=True):
            sample, found = as_ours(one, str(index))
            self._found.append(found)
            yield sample

    def detect(self, samples: list[Any], _: int) -> Iterator[tuple[Any, dict[str, float]]]:
        """Yield the detections in samples that were just read."""
        for _ in samples:
            yield self._found.popleft(), {}


def evaluate_whole(count: int) -> dict[str, Any]:
    """Evaluate made-up detections into a folder, and return AP and the size of what was written."""
    from boxwright.evaluation.build import EvaluationPlan
    from boxwright.evaluation.data import EvaluationData
    from boxwright.evaluation.image_results import ImageResults
    from boxwright.evaluation.images import evaluate_images
    from boxwright.evaluation.summary import summarize
    from boxwright.evaluation.write import write_evaluation

    images: Any = MadeUp(count)
    plan = EvaluationPlan(batch_size=8, num_pictures=0, losses=False)
    with tempfile.TemporaryDirectory() as folder, ImageResults(folder) as results:
        evaluated = evaluate_images(images.detect, EvaluationData("", images, plan), images.read)
        evaluation = summarize(evaluated, plan, images.categories, results.add)
        write_evaluation(evaluation, results, folder)
        size = sum(path.stat().st_size for path in Path(folder).glob("*.json"))
    return {"AP": evaluation.metrics["DetectionBoxes_Precision/mAP"], "GiB written": round(size / 2**30, 3)}


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
    for number, one in enumerate(images):
        truth["images"].append({"id": number, "height": SIDE, "width": SIDE})
        for box, label, crowd in zip(one["objects"].astype(float), one["labels"], one["crowd"], strict=True):
            x, y, width, height = box[0], box[1], box[2] - box[0], box[3] - box[1]
            row = {"image_id": number, "category_id": int(label), "bbox": [x, y, width, height], "iscrowd": int(crowd)}
            area = float(np.float32(width) * np.float32(height))
            truth["annotations"].append({**row, "id": len(truth["annotations"]) + 1, "area": area})
        for box, label, score in zip(one["boxes"].astype(float), one["found"], one["scores"].tolist(), strict=True):
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


def wait_and_evaluate(name: str, count: int) -> None:
    """Build the input; for each line of standard input, evaluate and print the seconds and the metrics."""
    images = list(made_up(count))
    evaluate = ours(images) if name == "boxwright" else theirs(images, name)
    del images
    answers, sys.stdout = sys.stdout, sys.stderr
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        values = evaluate()
        print(json.dumps([time.perf_counter() - began, values]), file=answers, flush=True)


class Contender:
    """A process that evaluates when it is asked."""

    def __init__(self, name: str, source: Path, images: int) -> None:
        """Start it, and wait until it has built its input.

        Args:
            source: The folder from which it imports Boxwright.
        """
        self.name = name
        words = [sys.executable, __file__, "--contender", "boxwright" if name == "before" else name]
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*words, "--images", str(images)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._line()

    def _line(self) -> str:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise SystemExit(f"{self.name} ended")
        return line

    def ask(self) -> tuple[float, list[float]]:
        """Return the seconds that an evaluation took, and its metrics."""
        if self.process.stdin:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        seconds, values = json.loads(self._line())
        return seconds, values


def race(count: int, rounds: int, before: Path | None) -> dict[str, Any]:
    """Return the seconds of each contender's rounds, and how far its metrics are from ours."""
    sources = dict.fromkeys(CONTENDERS, HERE.parent / "src")
    if before is not None:
        sources["before"] = before / "src"
    running = {name: Contender(name, source, count) for name, source in sources.items()}
    seconds: dict[str, list[float]] = {name: [] for name in running}
    values: dict[str, list[float]] = {}
    for number in range(rounds):
        for name in list(running) if number % 2 else reversed(running):
            took, values[name] = running[name].ask()
            seconds[name].append(round(took, 3))
    for child in running.values():
        child.process.communicate()
    apart = {name: float(np.abs(np.subtract(found, values["boxwright"])).max()) for name, found in values.items()}
    return {"images": count, "seconds": seconds, "apart": apart, "AP": values["boxwright"][0]}


def resident() -> float:
    """Return the peak of resident memory so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Measure what the arguments say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--images", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--contender", choices=CONTENDERS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.contender:
        wait_and_evaluate(given.contender, given.images)
        return
    if given.memory:
        count = given.images or 118_287
        evaluate_whole(10)
        start, began = resident(), time.perf_counter()
        found = {"images": count, "detections": count * DETECTIONS, **evaluate_whole(count)}
        found |= {"GiB above the start": round(resident() - start, 3), "seconds": round(time.perf_counter() - began)}
    else:
        found = race(given.images or 5000, given.rounds, given.before)
        for name, rounds in found["seconds"].items():
            ratios = [own / one for own, one in zip(found["seconds"]["boxwright"], rounds, strict=True)]
            print(
                f"{name:18} {statistics.median(rounds):7.2f} s; ours takes {statistics.median(ratios):.2f} of it; "
                f"metrics {found['apart'][name]:.1e} apart"
            )
    print(json.dumps(found))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
