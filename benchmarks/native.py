"""Steps and detections with the native extension, over those by PyTorch's operators alone.

    GOMP_SPINCOUNT=1000 OMP_NUM_THREADS=2 python benchmarks/native.py [--rounds 6] [--models …] [--json FILE]

Five presets. A step is forward, losses, backward and SGD, on made-up images with eight boxes each; a detection is in
one picture, by the optimized detector, with PyTorch's operators also by Winograd's algorithm. All kinds take turns
within a round. Compared is the processor's time of all threads, which other programs change little. One thread alone
is no measure, as PyTorch then convolves in another way.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

import boxwright as bw
from boxwright.nn import winograd as models_winograd
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.detector import Detector
from boxwright.nn.ops import native
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.types import Targets

OBJECTS = 8
BATCHES = {
    "ssd_mobilenet_v2_320": 8,
    "ssd_mobilenet_v2_fpnlite_320": 8,
    "efficientdet_d0": 1,
    "ssd_resnet50_v1_fpn_640": 1,
    "faster_rcnn_resnet50_v1_640": 1,
}
Run = Callable[[], object]
Row = dict[str, dict[str, float]]


@contextmanager
def without_extension(*, winograd: bool) -> Iterator[None]:
    """Let PyTorch's operators compute, optimized detectors by Winograd's algorithm or directly."""
    extension, tiles = native.EXTENSION, models_winograd._LEAST_TILES
    native.EXTENSION, models_winograd._LEAST_TILES = None, tiles if winograd else 1 << 60
    try:
        yield
    finally:
        native.EXTENSION, models_winograd._LEAST_TILES = extension, tiles


def build(name: str) -> Detector:
    """Return a preset's detector with random weights."""
    torch.manual_seed(0)
    return bw.build_detector(bw.load_config(f"preset:{name}")).to(memory_format=torch.channels_last)


def step(name: str, batch: int) -> Run:
    """Return a training step."""
    detector = build(name).train()
    optimizer = torch.optim.SGD(detector.parameters(), 1e-6, momentum=0.9)
    size = detector.preprocessor.resizer.output_size or (512, 512)
    inputs, sizes = detector.preprocess(torch.randint(0, 256, (batch, *size, 3), dtype=torch.uint8))
    low, ones = torch.rand(batch, OBJECTS, 2) * 0.6 * size[0], torch.ones(batch, OBJECTS)
    boxes = torch.cat([low, low + 0.3 * size[0]], -1)
    targets = Targets(boxes, torch.randint(0, 90, (batch, OBJECTS)), ones, ones > 0)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(LossTerm.sum(detector.criterion(detector.predict(inputs, sizes, targets), targets)))
        optimizer.step()

    return run


def detection(name: str) -> Run:
    """Return a detection in one picture by a detector that is optimized for what computes now."""
    detector = build(name).optimize()
    image = torch.randint(0, 256, (3, 480, 640), dtype=torch.uint8)
    return lambda: detector.detect([image])


def directly(run: Run) -> None:
    """Run by PyTorch's operators alone."""
    with without_extension(winograd=False):
        run()


def measure(contenders: dict[str, Run], rounds: int) -> Row:
    """Return milliseconds, and each contender's least time and median over those of the first."""
    times: dict[str, list[float]] = {kind: [] for kind in contenders}
    for count in range(rounds + 1):
        for kind, run in contenders.items():
            start = time.process_time()
            run()
            if count:  # the first is warm-up
                times[kind].append(1000 * (time.process_time() - start))
    first = next(iter(times.values()))
    return {
        kind: {
            "ms of processor": round(min(values), 1),
            "least": round(min(values) / min(first), 3),
            "median": round(statistics.median(value / other for value, other in zip(values, first, strict=True)), 3),
        }
        for kind, values in times.items()
    }


def processor() -> str:
    """Return what the system calls the processor."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--models", nargs="+", default=list(BATCHES), choices=list(BATCHES))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if native.EXTENSION is None:
        parser.error("this installation has no native extension")
    keep_freed_memory()
    results: dict[str, object] = {
        "processor": processor(),
        "level": native.EXTENSION.level,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(json.dumps(results), flush=True)
    for name in arguments.models:
        run = step(name, BATCHES[name])
        rows = {"step": measure({"PyTorch": partial(directly, run), "native": run}, arguments.rounds)}
        del run
        detections: dict[str, Run] = {}
        for kind, winograd in (("PyTorch", False), ("PyTorch, Winograd", True)):
            with without_extension(winograd=winograd):
                detections[kind] = partial(directly, detection(name))
        detections["native"] = detection(name)
        rows["detection"] = measure(detections, 2 * arguments.rounds)
        results[name] = rows
        print(name, json.dumps(rows), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
