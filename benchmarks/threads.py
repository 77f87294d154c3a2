"""How OpenMP's threads wait: a training step and an inference, alone and beside other work.

    python benchmarks/threads.py [--rounds 12] [--busy 1 2 4] [--ways "PyTorch's own" "asleep at once" …] [--json FILE]

Each way to wait is a process of its own, as it is read once, when PyTorch is imported; the processes take turns, a step
each a round, and are asleep in between. Prints milliseconds, and ratios to the first way within a round (below 1 is
faster): the least, the median. `--busy` says how many processes compute beside it, after rounds beside none.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAYS = {
    "PyTorch's own": {},
    "asleep at once": {"OMP_WAIT_POLICY": "PASSIVE"},
    "5,000 turns": {"GOMP_SPINCOUNT": "5000"},
    "100,000 turns": {"GOMP_SPINCOUNT": "100000"},
    "100,000 if idle": {"GOMP_SPINCOUNT": "100000", "BENCHMARK_WATCHES": "1"},
    "and short slices (ours)": {"GOMP_SPINCOUNT": "100000", "BENCHMARK_WATCHES": "1", "BENCHMARK_SLICES": "1"},
}
OURS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")
WARM_UPS = 3
# Ends with the program that started it, however that ends.
COMPUTE = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


def answer() -> None:
    """Do a step for each line of standard input, and print its milliseconds: what a child does."""
    import torch  # before boxwright, which else chooses how threads wait

    sys.path.insert(0, str(Path(__file__).parent))
    from step import ours

    step, detect = ours("ssd_mobilenet_v2_fpn_keras", 320, _pyramid(), "fpn { min_level: 3 max_level: 7 }", "cpu")
    torch.manual_seed(0)
    if os.environ.get("BENCHMARK_WATCHES"):
        from boxwright.base.spinning import spin_only_on_idle_cpus

        del os.environ["GOMP_SPINCOUNT"]  # OpenMP has read it; a user's own is left alone
        if not spin_only_on_idle_cpus():
            sys.exit("this system does not say how long threads waited for a CPU")
    if os.environ.get("BENCHMARK_SLICES"):
        from boxwright.base.time_slices import shorten_time_slices

        if not shorten_time_slices():
            sys.exit("this system does not change time slices: Linux does from version 6.12 on")
    for line in sys.stdin:
        began = time.perf_counter()
        (step if line.strip() == "step" else detect)(4 if line.strip() == "step" else 1)
        print(1000 * (time.perf_counter() - began), flush=True)


def _pyramid() -> str:
    from step import PYRAMID

    return PYRAMID


def _started(way: dict[str, str]) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    return subprocess.Popen(
        [sys.executable, __file__, "--answer"],
        env={**environment, **way},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _timed(child: subprocess.Popen[str], what: str) -> float:
    if child.stdin is None or child.stdout is None:
        raise ValueError("a child without pipes")
    print(what, file=child.stdin, flush=True)
    return float(child.stdout.readline())


def rounds_of(children: dict[str, subprocess.Popen[str]], what: str, rounds: int) -> dict[str, list[float]]:
    """Return each way's milliseconds, round by round; the order turns."""
    times: dict[str, list[float]] = {name: [] for name in children}
    names = list(children)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            times[name].append(_timed(children[name], what))
    return times


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Let processes compute beside what is timed.

    Args:
        count: How many.

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


def summary(times: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Return, for each way, least and median milliseconds, and its ratios to the first within a round."""
    first = next(iter(times.values()))
    found = {}
    for name, one in times.items():
        ratios = [mine / theirs for mine, theirs in zip(one, first, strict=True)]
        found[name] = {
            "least_ms": round(min(one), 1),
            "median_ms": round(statistics.median(one), 1),
            "ratio_least": round(min(one) / min(first), 3),
            "ratio_median": round(statistics.median(ratios), 3),
            "samples_ms": [round(value, 1) for value in one],
        }
    return found


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Return all that was measured: by how busy the machine was, by what was done, by way."""
    from boxwright.runtime.measure import load  # not in the children, which import PyTorch first

    children = {name: _started(WAYS[name]) for name in given.ways}
    found: dict[str, Any] = {}
    try:
        for what in ("step", "detect"):
            rounds_of(children, what, WARM_UPS)
        for count in (0, *given.busy):
            title = f"beside {count} busy processes" if count else "beside none of ours"
            with busy(count):
                before = load()[0]
                found[title] = {what: summary(rounds_of(children, what, given.rounds)) for what in ("step", "detect")}
                found[title]["load of a core, before and after"] = [round(before, 2), round(load()[0], 2)]
            _print(title, found[title])
    finally:
        for child in children.values():
            child.kill()
            child.wait()
    return found


def _print(title: str, found: dict[str, Any]) -> None:
    print(title)
    for what in ("step", "detect"):
        for name, one in found[what].items():
            print(
                f"  {what:7} {name:23} least {one['least_ms']:8.1f} ms ({one['ratio_least']:.2f})  "
                f"median {one['median_ms']:8.1f} ms ({one['ratio_median']:.2f})"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--busy", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.answer:
        answer()
        return
    found = measured(given)
    if given.json:
        given.json.write_text(json.dumps({"cores": os.cpu_count(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
