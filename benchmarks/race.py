"""Race TensorFlow's own graphs of the Object Detection API: ours over TensorFlow's time, a step and a detection.

    make race                                    or, for some of it, after `make race RACE=--help` has made both sides:
    python benchmarks/race.py --tf-python .venv-race/bin/python [--busy 0 1 3] [--cpu default avx2] [--json FILE]
        [-- --models ssd_mobilenet_v2_320x320 --modes train --rounds 5]

The folder BOXWRIGHT_TF_RACE holds the graphs as SavedModels and `race.py`, which times both sides in interleaved rounds
with the same weights and images, and prints their losses. This runs it as users compute: our threads wait as in
`boxwright` commands; with the processor's own instructions and with those of an older one; alone and beside busy
processes, so many for each core. What follows `--` goes to `race.py`. The JSON says which processor it was, and its
flags: instructions decide more than code. It is written after each row, so that a race that is cut off keeps its rows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from boxwright.base.threads import prepare_threads, usable_cpus
from threads import busy

VARIABLE = "BOXWRIGHT_TF_RACE"
_POLL_S = 0.5
HELP = argparse.RawDescriptionHelpFormatter


def main() -> None:
    """Race, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HELP)
    parser.add_argument("--tf-python", help="a Python that has tensorflow-cpu 2.15.1", required=True)
    parser.add_argument("--busy", type=int, nargs="+", default=[0], help="busy processes beside it, for each core")
    parser.add_argument("--cpu", nargs="+", default=["default", "avx2"], choices=["default", "avx512", "avx2"])
    parser.add_argument("--cache", type=Path, default=Path("build/race"), help="where the graphs are unpacked")
    parser.add_argument("--json", type=Path)
    parser.add_argument("rest", nargs="*", help="options of race.py, after --")
    arguments = parser.parse_args()
    folder = os.environ.get(VARIABLE)
    if not folder or not (Path(folder) / "race.py").is_file():
        sys.exit(f"{VARIABLE} must name the folder of TensorFlow's graphs and race.py: it is {folder or 'not set'}")
    arguments.cache.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for capability in arguments.cpu:
        for count in arguments.busy:
            print(f"instructions: {capability}; busy processes for each core: {count}", flush=True)
            with busy(count * usable_cpus()):
                for row in raced(Path(folder), arguments, capability):
                    rows.append({"instructions": capability, "busy_per_core": count, **row})
                    if arguments.json:
                        arguments.json.write_text(json.dumps({**processor(), "rows": rows}, indent=1) + "\n")


def raced(folder: Path, arguments: argparse.Namespace, capability: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of one run of `race.py`, each as soon as it has written it."""
    environment = {**os.environ} if capability == "default" else {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    prepare_threads(environment)  # as a command does
    cache = arguments.cache.resolve()
    result = cache / "rows.json"
    result.unlink(missing_ok=True)
    sides = ["--tf-python", arguments.tf_python, "--our-python", sys.executable]
    files = ["--cache", str(cache), "--log", str(cache / "race.log"), "--json", str(result)]
    script = [sys.executable, str(folder / "race.py"), *sides, *files, *arguments.rest]
    race, count = subprocess.Popen(script, env=environment), 0
    try:
        while True:
            ended = race.poll() is not None
            rows = written(result)
            for row in rows[count:]:
                yield {"openmp_spins": environment.get("GOMP_SPINCOUNT"), **row}
            count = max(count, len(rows))
            if ended:
                break
            time.sleep(_POLL_S)
    finally:
        race.terminate()
        race.wait()
    if race.returncode or not count:
        sys.exit(f"the race ended with {count} rows: {cache / 'race.log'} says more")


def written(path: Path) -> list[dict[str, Any]]:
    """Return the rows in a file; none if it is missing, or being written."""
    try:
        return list(json.loads(path.read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return []


def processor() -> dict[str, Any]:
    """Return the processor's name, its instructions (Linux), and how many this process may use."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.is_file() else []
    known = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {
        "processor": known.get("model name", platform.processor()),
        "cores": usable_cpus(),
        "flags": known.get("flags", "").split(),
    }


if __name__ == "__main__":
    main()
