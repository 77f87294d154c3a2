"""How OpenMP's threads wait: what that does to a detection and to a training step, alone and beside busy processes.

    python benchmarks/threads.py [--models ssd_mobilenet_v2_fpnlite_320 …] [--busy 0 2] [--rounds 15] [--json FILE]
        [--ways "PyTorch's default" GOMP_SPINCOUNT=1000 …] [--openmp libiomp5.so]

Each way to wait is a process of its own, in which PyTorch is imported first, as OpenMP reads its variables once. The
processes of a model take turns and sleep in between: a detection of one picture and a step of a batch each a round.
Prints median and least milliseconds. `--busy` says how many processes compute beside them. `--openmp` replaces GNU's
OpenMP by LLVM's or Intel's library, which has other variables.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEFAULT, ONE = "PyTorch's default", "one thread"
# 1000 turns, and a millisecond, are what the commands of boxwright set.
GNU = [DEFAULT, *(f"GOMP_SPINCOUNT={count}" for count in (0, 1000, 10_000, 100_000)), ONE]
LLVM = [DEFAULT, "KMP_BLOCKTIME=0", "KMP_BLOCKTIME=1", ONE]
OURS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")
# Freed memory is kept, as in commands, so that mapping it again adds no noise.
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1", "MALLOC_TOP_PAD_": str(64 << 20)}
WARM_UPS = 3
SIZE = (480, 640)
# Ends with the program that started it, however that ends.
COMPUTE = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
Times = dict[str, dict[str, list[float]]]  # by way, by what is done


def answer(model: str, batch: int) -> None:
    """Do what each line of standard input says, and print its milliseconds: what a child does."""
    import numpy as np
    import torch  # before boxwright, as in most programs

    import boxwright as bw

    torch.manual_seed(0)
    config = bw.load_config(f"preset:{model}", [f"train_config.batch_size={batch}"])
    detector = bw.build_detector(config)
    image = np.random.default_rng(0).integers(0, 255, (*SIZE, 3), np.uint8)

    class Samples:
        categories = bw.Categories(tuple(bw.Category(n, n + 1, str(n)) for n in range(detector.num_classes)))

        def __len__(self) -> int:
            return batch

        def __getitem__(self, index: int) -> bw.Sample:
            return bw.Sample(image, np.array([[40, 60, 200, 240], [300, 200, 420, 400]]), np.array([0, 1]))

    learner = bw.Learner(config, dataset=Samples(), device="cpu")
    learned = next(learner.batches())
    detector.optimize()
    work: dict[str, Callable[[], object]] = {
        "step": lambda: learner.step(learned),
        "detect": lambda: detector.detect([image]),
    }
    for line in sys.stdin:
        began = time.perf_counter()
        work[line.strip()]()
        print(1000 * (time.perf_counter() - began), flush=True)


def started(model: str, batch: int, way: str, openmp: str) -> subprocess.Popen[str]:
    """Return the process of a way to wait."""
    environment = {name: value for name, value in os.environ.items() if name not in OURS} | KEPT
    if "=" in way:
        name, _, value = way.partition("=")
        environment[name] = value
    if way == ONE:
        environment["OMP_NUM_THREADS"] = "1"
    if openmp:
        environment["LD_PRELOAD"] = openmp
    script = [sys.executable, __file__, "--answer", model, "--batch", str(batch)]
    return subprocess.Popen(script, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def timed(child: subprocess.Popen[str], what: str) -> float:
    """Return a child's milliseconds."""
    if child.stdin is None or child.stdout is None:
        raise ValueError("a child without pipes")
    print(what, file=child.stdin, flush=True)
    return float(child.stdout.readline())


def take_turns(children: dict[str, subprocess.Popen[str]], rounds: int) -> Times:
    """Return each way's milliseconds, round by round; the order turns."""
    names = list(children)
    times: Times = {name: {"detect": [], "step": []} for name in names}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            for what, samples in times[name].items():
                samples.append(timed(children[name], what))
    return times


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Let so many processes compute beside what is timed.

    Yields:
        Nothing.
    """
    others = [subprocess.Popen([sys.executable, "-c", COMPUTE]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measured(model: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of a model: by how many processes compute beside it, by way."""
    children = {way: started(model, given.batch, way, given.openmp) for way in given.ways}
    try:
        take_turns(children, WARM_UPS)
        for count in given.busy:
            before = os.getloadavg()[0]
            with busy(count):
                times = take_turns(children, given.rounds)
            for way, samples in times.items():
                row: dict[str, Any] = {"model": model, "batch of a step": given.batch}
                row |= {"threads wait": way, "busy processes": count}
                for what, ms in samples.items():
                    row[what] = {"median_ms": round(statistics.median(ms), 1), "least_ms": round(min(ms), 1)}
                yield row | {"load_before": round(before, 2), "rounds": given.rounds}
    finally:
        for child in children.values():
            child.kill()
            child.wait()


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["ssd_mobilenet_v2_fpnlite_320"], help="presets")
    parser.add_argument("--batch", type=int, default=8, help="images of a step")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ways", nargs="+", help="default: all")
    parser.add_argument("--openmp", default="", help="LLVM's or Intel's library")
    parser.add_argument("--note", default="", help="what to know of the machine, for the JSON")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        answer(given.answer, given.batch)
        return
    given.ways = given.ways or (LLVM if given.openmp else GNU)
    about = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), "note": given.note}
    rows: list[dict[str, Any]] = []
    print(f"{'model':34} {'threads wait':24} {'busy':>4}  {'a detection: median':>20} {'least ms':>12}", end="")
    print(f"  {'a step: median':>16} {'least ms':>12}")
    for model in given.models:
        for row in measured(model, given):
            rows.append(row | ({"openmp": Path(given.openmp).name} if given.openmp else {}))
            numbers = "  ".join(
                f"{row[what]['median_ms']:16.1f} {row[what]['least_ms']:12.1f}" for what in ("detect", "step")
            )
            print(f"{model:34} {row['threads wait']:24} {row['busy processes']:4}  {numbers}", flush=True)
            if given.json:
                given.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
