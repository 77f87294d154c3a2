"""Two hundred to three hundred images, from scratch, equally long: detectors of ours and of torchvision's.

    BOXWRIGHT_DATA=folder-that-holds-bccd-and-raccoon OMP_NUM_THREADS=1 python benchmarks/small_data.py
        [--data bccd raccoon] [--contenders NAME …] [--seeds 0] [--minutes 5] [--work FOLDER]
    … python benchmarks/small_data.py --speed [--rounds 15]

Blood cells (BCCD, trainval and test) and raccoons (four fifths and one fifth). All learn from the same decoded images,
at 320×320, in batches of 8, for the same processor time of one thread, so that what else the machine does hardly
counts: a contender's step is timed in turns with that of the first contender, and its schedule is fitted to the steps
(at most 1000) that the minutes allow. Each has its own augmentation. Our metrics judge all of them, and draw the test
images again for the interval.

Each row goes to `results/small-data-cpu.json` as soon as it is there; rows that are there are not trained again.
`--speed` measures contenders in turns: milliseconds for an image, in PyTorch and in ONNX Runtime, of the trained
weights in the folder `--work` where it has them; memory of a step, sizes of files. `small_data_table.py` prints all.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from PIL import Image

from boxwright.cli.benchmarking.facts import facts
from boxwright.data.dataset import Dataset
from boxwright.data.label_map import load_label_map
from boxwright.data.voc import VocDataset
from boxwright.evaluation.metrics.coco import CocoMetrics
from boxwright.report.analysis import MOST_DRAWS, ap_interval, bootstrap
from boxwright.report.matching import average_precisions, class_curves, match
from boxwright.report.tables import DetectionTable, ObjectTable, Tables
from boxwright.runtime.measure import measure
from boxwright.types import Array, Detections, Sample

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]
from race import processor  # noqa: E402  # a script beside this one
from small_data_models import CONTENDERS, Pixels, Samples, Training  # noqa: E402

RESULTS = HERE / "results" / "small-data-cpu.json"
# Longer sides: what a network of 320×320 sees of more is little, and all learn from less to decode and move.
LONGEST = 400
MOST_STEPS = 1000
# Rounds of steps in turns: the first of each is slow.
WARM_UPS, ROUNDS = 2, 5
FIRST = "FPNLite"


def shrunk(sample: Sample) -> Sample:
    """Return a sample whose image is no longer than `LONGEST`."""
    height, width = sample.image.shape[:2]
    scale = min(LONGEST / max(height, width), 1.0)
    size = (round(width * scale), round(height * scale))
    image = np.array(Image.fromarray(sample.image).resize(size, Image.Resampling.BILINEAR))
    boxes = sample.boxes * np.array([size[0] / width, size[1] / height] * 2, np.float32)
    return Sample(image, boxes=boxes, labels=sample.labels, id=sample.id)


def read(name: str, root: Path) -> tuple[Samples, Samples]:
    """Return the samples to learn from and those to judge by."""
    if name == "bccd":
        known = load_label_map(HERE / "bccd_label_map.pbtxt")
        train, test = (VocDataset(root / name, part, known) for part in ("trainval", "test"))
        return _samples(train, range(len(train))), _samples(test, range(len(test)))
    every = VocDataset(root / name)
    numbers = range(len(every))
    return _samples(every, [n for n in numbers if n % 5]), _samples(every, [n for n in numbers if not n % 5])


def _samples(dataset: Dataset, numbers: Sequence[int]) -> Samples:
    return Samples(dataset.name, dataset.categories, [shrunk(dataset[number]) for number in numbers])


def judge(found: Sequence[Detections[Array]], data: Samples) -> dict[str, Any]:
    """Return average precision, with the interval of draws of the images."""
    metrics = CocoMetrics(data.categories)
    for sample, one in zip(data.samples, found, strict=True):
        metrics.add(sample, one)
    values = metrics.compute().values
    tables = _tables(found, data)
    curves = class_curves(tables, match(tables))
    known = ap_interval(average_precisions(curves), bootstrap(curves, len(data), MOST_DRAWS))
    return {
        "AP": round(values["DetectionBoxes_Precision/mAP"], 4),
        "AP interval": [round(known.low, 4), round(known.high, 4)],
        "AP50": round(values["DetectionBoxes_Precision/mAP@.50IOU"], 4),
    }


def _tables(detections: Sequence[Detections[Array]], data: Samples) -> Tables:
    samples = data.samples
    counts, truths = [len(one.labels) for one in detections], [len(one.labels) for one in samples]
    numbers = np.arange(len(samples))
    boxes = np.concatenate([one.boxes for one in samples]).astype(np.float64)
    total = sum(counts)
    return Tables(
        categories=data.categories,
        ids=numbers.tolist(),
        names=[sample.id for sample in samples],
        sizes=np.array([sample.image.shape[:2] for sample in samples]),
        places=numbers,
        objects=ObjectTable(
            images=np.repeat(numbers, truths),
            labels=np.concatenate([one.labels for one in samples]),
            boxes=boxes,
            areas=(boxes[:, 2:] - boxes[:, :2]).prod(1),
            crowd=np.zeros(len(boxes), bool),
        ),
        detections=DetectionTable(
            images=np.repeat(numbers, counts),
            labels=np.concatenate([one.labels for one in detections]),
            boxes=np.concatenate([one.boxes for one in detections]).astype(np.float64).reshape(total, 4),
            scores=np.concatenate([one.scores for one in detections]).astype(np.float64),
            rows=np.arange(total),
        ),
    )


def seconds_of_steps(trainings: Sequence[Training]) -> list[float]:
    """Return the processor time of a step of each, the median of rounds in turns."""
    took: list[list[float]] = [[] for _ in trainings]
    for _ in range(WARM_UPS + ROUNDS):
        for one, times in zip(trainings, took, strict=True):
            began = time.process_time()
            one.step()
            times.append(time.process_time() - began)
    return [statistics.median(times[WARM_UPS:]) for times in took]


def cost(name: str, data: Samples, known: dict[str, float]) -> float:
    """Return the processor seconds of a contender's step; others than the first by their ratio to the first's."""
    if name in known:
        return known[name]
    names = [FIRST] if name == FIRST else [FIRST, name]
    took = seconds_of_steps([CONTENDERS[one](data, MOST_STEPS, 0) for one in names])
    known.setdefault(FIRST, round(took[0], 4))
    known[name] = round(known[FIRST] * took[-1] / took[0], 4)
    return known[name]


def train(name: str, data: tuple[Samples, Samples], steps: int, seed: int, kept: Path | None) -> dict[str, Any]:
    """Train and judge once."""
    torch.manual_seed(seed)
    began, began_at = time.process_time(), time.perf_counter()
    training = CONTENDERS[name](data[0], steps, seed)
    for number in range(steps):
        training.step()
        if number % 50 == 49:
            print(f"  {name}, step {number + 1} of {steps}: {time.process_time() - began:.0f} s", flush=True)
    took = {
        "processor seconds": round(time.process_time() - began, 1),
        "seconds": round(time.perf_counter() - began_at, 1),
    }
    row: dict[str, Any] = {"steps": steps, **took}
    for kind, network in training.detectors().items():
        judged = judge(training.find(network, [sample.image for sample in data[1].samples]), data[1])
        if kind == "evaluated":
            row |= judged
            if kept is not None:
                torch.save(network.state_dict(), kept)
        else:
            row[f"AP, {kind}"] = judged["AP"]
    return row


def sizes_and_speeds(names: Sequence[str], data: Samples, rounds: int, weights: Path | None) -> list[dict[str, Any]]:
    """Return what each contender costs beside training; times are measured in turns."""
    image = data[0].image
    runs: dict[str, Callable[[], Any]] = {}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            training = CONTENDERS[name](data, MOST_STEPS, 0)
            training.step()
            network = training.detectors()["evaluated"]
            found = list(weights.glob(f"bccd, {name}, 0, *.pt")) if weights else []
            if found:
                network.load_state_dict(torch.load(found[0], weights_only=True))
            eager = partial(training.find, network, [image])
            known = facts(network, training.step, eager)
            path = Path(folder) / f"{len(rows)}.onnx"
            given = training.export(network, path, [image])(image)
            torch.save(network.state_dict(), path.with_suffix(".pt"))
            runs |= {f"{name}, eager": eager, f"{name}, exported": _session(path, given)}
            rows.append(
                {
                    "contender": name,
                    "trained": bool(found),
                    "parameters": known.parameters,
                    "peak MiB of a step": round(known.peak_mib, 1),
                    "weights MB": round(path.with_suffix(".pt").stat().st_size / 1e6, 1),
                    "ONNX MB": round(path.stat().st_size / 1e6, 1),
                }
            )
    timings = {one.name: one for one in measure(runs, 1, rounds)}
    for row in rows:
        for kind in ("eager", "exported"):
            one = timings[f"{row['contender']}, {kind}"]
            row[f"{kind} ms"] = {"least": round(one.least_ms, 2), "median": round(one.median_ms, 2)}
    return rows


def _session(path: Path, given: Pixels) -> Callable[[], Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    return partial(session.run, None, {session.get_inputs()[0].name: given})


def about(script: str = "small_data.py") -> dict[str, Any]:
    """Return what every row says of when and where it was measured."""
    known = {key: value for key, value in processor().items() if key != "flags"}
    versions = {name: version(name) for name in ("torch", "torchvision", "onnxruntime")}
    # Without the folders of this machine.
    words = [Path(word).name if os.sep in word else word for word in sys.argv[1:]]
    command = shlex.join(["python", f"benchmarks/{script}", *words])
    return {"date": date.today().isoformat(), "command": command, **known, **versions}


def opened(path: Path) -> dict[str, Any]:
    """Return what is known already."""
    empty: dict[str, Any] = {"seconds of a step": {}, "training": [], "speed": []}
    return json.loads(path.read_text()) if path.is_file() else empty


def write(results: dict[str, Any], path: Path) -> None:
    """Write what is known now."""
    path.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    """Train and judge what is missing, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["bccd", "raccoon"], choices=["bccd", "raccoon"])
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--steps", type=int, default=0, help="instead of what the minutes allow")
    parser.add_argument("--work", type=Path, help="keeps the weights")
    parser.add_argument("--speed", action="store_true", help="measure, do not train")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    root = Path(os.environ["BOXWRIGHT_DATA"])
    if given.work:
        given.work.mkdir(parents=True, exist_ok=True)
    results = opened(given.json)
    if given.speed:
        rows = sizes_and_speeds(given.contenders, read("bccd", root)[0], given.rounds, given.work)
        results["speed"] = [{**row, **about()} for row in rows]
        write(results, given.json)
        return
    for name in given.data:
        data = read(name, root)
        for contender in given.contenders:
            for seed in given.seeds:
                key = {"data": name, "contender": contender, "seed": seed, "minutes": given.minutes}
                if any(all(row[part] == value for part, value in key.items()) for row in results["training"]):
                    continue
                second = cost(contender, data[0], results["seconds of a step"])
                steps = given.steps or min(int(60 * given.minutes / second), MOST_STEPS)
                kept = given.work and given.work / f"{name}, {contender}, {seed}, {given.minutes:g} min.pt"
                row = {**key, **train(contender, data, steps, seed, kept), **about()}
                results["training"].append(row)
                write(results, given.json)
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
