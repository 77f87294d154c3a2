"""How cost grows: seconds and peak memory against size, on made-up data, with the exponent of each.

    python benchmarks/scaling.py [--only AXIS …] [--quick] [--again] [--work FOLDER] [--json FILE]

Seconds are processor time of one thread, user's and system's, as other work on the machine does not change it; what
waits for a disk is not in it. Each row is a process of its own, which takes its sizes from the smallest: it prepares,
runs two to five times (once if that takes five seconds), and says the least seconds and the peak of its resident
memory, which is reset before the runs. The exponent p of seconds ~ size^p is the slope, in logarithms, over the last
two decades of sizes. Results are kept in the JSON file, so that a call that was interrupted continues; sizes that would
take longer than `--most` seconds, by the slope so far, are left out, and the row says so. `--quick` takes the small
sizes alone. Rows, and what their sizes count, are in `scaling_axes.py`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]
from scaling_axes import AXES, Axis  # noqa: E402  # beside this script

RESULTS = HERE / "results" / "scaling-cpu.json"
PICTURE = HERE / "results" / "scaling.png"
_LEAST_S, _MOST_RUNS, _LONG_S = 0.5, 5, 5.0
_SLOPE_OVER = 100
_MIB = 2**20


def measure(axis: str, part: str, sizes: list[int], work: Path) -> None:
    """Print seconds, and resident memory in MiB before the runs and at their peak, a line for each size."""
    for size in sizes:
        run = AXES[axis].parts[part](size, work)
        before = _resident()
        # Preparing may have taken more memory than the runs will.
        Path("/proc/self/clear_refs").write_text("5")
        taken: list[float] = []
        # The first run also imports and allocates; it counts where it takes long.
        while len(taken) < 2 or (sum(taken) < _LEAST_S and len(taken) < _MOST_RUNS):
            began = time.process_time()
            own = run()
            taken.append(time.process_time() - began if own is None else own)
            if taken[0] > _LONG_S:
                break
        print(json.dumps({"size": size, "seconds": min(taken), "before_mib": before, "peak_mib": _peak()}), flush=True)
        del run
        gc.collect()


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / _MIB


def _peak() -> float:
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / _MIB


def measured(axis: str, part: str, sizes: list[int], choices: argparse.Namespace) -> Iterator[dict[str, float]]:
    """Yield the measurements of a child process, which is ended once no more are wanted."""
    words = [sys.executable, __file__, "--measure", axis, part, *map(str, sizes), "--work", str(choices.work)]
    alone = {"OMP_NUM_THREADS": "1", "BOXWRIGHT_CACHE": str(choices.work / "cache")}
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **alone})
    try:
        for line in child.stdout or ():
            if line.startswith('{"size"'):
                yield json.loads(line)
        if child.wait():
            raise SystemExit(f"{axis}, {part}: failed")
    finally:
        child.kill()
        child.wait()


def exponent(row: dict[str, Any]) -> float | None:
    """Return p of seconds ~ size^p over the last two decades; None of fewer than two sizes."""
    # One process sends nothing.
    sizes = sorted(int(size) for size, one in row["sizes"].items() if one["seconds"] > 0)
    last = [size for size in sizes if size * _SLOPE_OVER >= sizes[-1]]
    if len(last) < 2:
        return None
    seconds = [row["sizes"][str(size)]["seconds"] for size in last]
    return float(np.polyfit(np.log(last), np.log(seconds), 1)[0])


def run_axis(name: str, axis: Axis, results: dict[str, Any], choices: argparse.Namespace) -> None:
    """Measure what is missing of an axis, and write the results after each measurement."""
    for part in axis.parts:
        row = results["rows"].setdefault(f"{name}: {part}", {"unit": axis.unit, "sizes": {}})
        if choices.again:
            row["sizes"] = {}
        wanted = [one for one in (axis.quick if choices.quick else axis.sizes) if str(one) not in row["sizes"]]
        row |= {"limit": axis.limit, "left_out": []}
        for one in measured(name, part, wanted, choices) if wanted else ():
            size = int(one.pop("size"))
            row["sizes"][str(size)] = {key: float(f"{value:.4g}") for key, value in one.items()}
            row["exponent"] = exponent(row)
            print(f"{name}: {part}, {size:,}: {one['seconds']:.4g}, {one['peak_mib']:.0f} MiB", flush=True)
            row["left_out"] = [more for more in wanted if more > size and _too_long(row, size, more, choices.most)]
            _write(choices.json, results)
            if wanted[-1] in row["left_out"] and wanted[wanted.index(size) + 1] in row["left_out"]:
                break


def _too_long(row: dict[str, Any], size: int, more: int, most: float) -> bool:
    return bool(row["sizes"][str(size)]["seconds"] * (more / size) ** max(row["exponent"] or 1, 0) > most)


def _write(path: Path, results: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.replace(path)


def draw(results: dict[str, Any], path: Path) -> None:
    """Write the picture: a plot an axis, above seconds, below the peak of memory."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = [name for name in AXES if any(row.startswith(f"{name}: ") for row in results["rows"])]
    figure, plots = plt.subplots(2, len(names), figsize=(3.1 * len(names), 5.4), squeeze=False)
    for column, name in enumerate(names):
        for title, row in results["rows"].items():
            if not title.startswith(f"{name}: "):
                continue
            sizes = sorted(int(size) for size in row["sizes"])
            label = title.split(": ", 1)[1]
            slope = "" if row.get("exponent") is None else f" ({row['exponent']:.2f})"
            for line, key in enumerate(("seconds", "peak_mib")):
                values = [row["sizes"][str(size)][key] for size in sizes]
                plots[line][column].plot(sizes, values, marker=".", label=label + (slope if not line else ""))
        for line, title in enumerate(("seconds" if AXES[name].of == "seconds" else AXES[name].of, "peak, MiB")):
            plots[line][column].set(xscale="log", yscale="log" if not line else "linear", title=f"{name}: {title}")
            plots[line][column].grid(alpha=0.3)
        plots[0][column].legend(fontsize=6)
        plots[1][column].set_ylim(bottom=0)
        plots[1][column].set_xlabel(AXES[name].unit)
    figure.tight_layout()
    figure.savefig(path, dpi=60)


def table(results: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| | sizes | at the largest | exponent | peak memory, smallest and largest |", "|---|---|---|---|---|"]
    for title, row in results["rows"].items():
        sizes = sorted(int(size) for size in row["sizes"])
        first, last = (row["sizes"][str(size)] for size in (sizes[0], sizes[-1]))
        of = AXES[title.split(": ")[0]].of
        amount = f"{last['seconds']:.3g} s" if of == "seconds" else f"{last['seconds']:.4g} {of}"
        slope = "" if row.get("exponent") is None else f"{row['exponent']:.2f}"
        lines.append(
            f"| {title} | {sizes[0]:,} to {sizes[-1]:,} {row['unit']} | {amount} | {slope} | "
            f"{first['peak_mib']:.0f} and {last['peak_mib']:.0f} MiB |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, write the results and the picture, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(AXES), default=list(AXES), help="axes")
    parser.add_argument("--quick", action="store_true", help="small sizes alone")
    parser.add_argument("--again", action="store_true", help="measure what is in the file already, too")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "boxwright-scaling", help="folder for made-up data"
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="results, read and written")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--most", type=float, default=600.0, help="seconds that a size may take")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    choices = parser.parse_args()
    choices.work.mkdir(parents=True, exist_ok=True)
    if choices.measure:
        axis, part, *sizes = choices.measure
        measure(axis, part, [int(size) for size in sizes], choices.work)
        return
    results = json.loads(choices.json.read_text()) if choices.json.exists() else {"rows": {}}
    results["versions"] = {name: version(name) for name in ("boxwright", "torch", "numpy")}
    results["cpus"] = os.cpu_count()
    results["written"] = datetime.now(UTC).strftime("%Y-%m-%d")
    for name in choices.only:
        run_axis(name, AXES[name], results, choices)
    draw(results, choices.picture)
    print(table(results))
    worse = [title for title, row in results["rows"].items() if (row.get("exponent") or 0) > row["limit"]]
    print(f"worse than the limit of its axis: {', '.join(worse) or 'none'}")


if __name__ == "__main__":
    main()
