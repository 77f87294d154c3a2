"""`boxwright config check` of two checkouts: until the verdicts are printed, and as a whole.

    python benchmarks/config_check.py BEFORE/.venv/bin/boxwright AFTER/.venv/bin/boxwright CONFIG… [--rounds 9]
        [--json benchmarks/results/config-check-cpu.json]

Every call is a process of its own, as on a command line; the two take turns, and which is first alternates. Wall time
and processor time (of the child alone, which other programs on the machine hardly change) are compared as ratios within
a round, below 1 where the second is faster: the ratio of the least times, and the median ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

# The line that ends the verdicts; what follows it needs PyTorch.
VERDICTS = re.compile(rb"\d+ fields set: ")
TICKS = os.sysconf("SC_CLK_TCK")


class Times(NamedTuple):
    """Seconds of one call."""

    verdicts_wall: float
    verdicts_cpu: float
    whole_wall: float
    whole_cpu: float


def check(boxwright: Path, config: Path) -> Times:
    """Run the command once; raises a RuntimeError if it prints no verdicts or fails."""
    began = time.perf_counter()
    with subprocess.Popen([boxwright, "config", "check", config], stdout=subprocess.PIPE) as child:
        if child.stdout is None:
            raise RuntimeError("a child without a pipe")
        for line in child.stdout:
            if VERDICTS.match(line):
                # User and system time: the 12th and 13th field behind the name in parentheses, in ticks.
                behind = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
                verdicts = time.perf_counter() - began, (int(behind[11]) + int(behind[12])) / TICKS
                break
        else:
            raise RuntimeError(f"{boxwright} printed no verdicts of {config}")
        child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{boxwright} ended with status {child.returncode}: it did not build all of {config}")
    return Times(*verdicts, time.perf_counter() - began, usage.ru_utime + usage.ru_stime)


def summary(before: Sequence[Times], after: Sequence[Times]) -> dict[str, dict[str, float]]:
    """Return, for each of the times, both least values in seconds, and the ratios of the second to the first."""
    found = {}
    for name in Times._fields:
        first = [getattr(one, name) for one in before]
        second = [getattr(one, name) for one in after]
        found[name] = {
            "before_s": round(min(first), 3),
            "after_s": round(min(second), 3),
            "ratio_least": round(min(second) / min(first), 3),
            "ratio_median": round(statistics.median(b / a for a, b in zip(first, second, strict=True)), 3),
        }
    return found


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="The boxwright command of the earlier checkout.")
    parser.add_argument("after", type=Path, help="That of the later one.")
    parser.add_argument("configs", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    ways = (arguments.before, arguments.after)
    results = {}
    for config in arguments.configs:
        times: dict[Path, list[Times]] = {way: [] for way in ways}
        for way in ways:
            check(way, config)  # compiles what Python has not yet compiled
        for number in range(arguments.rounds):
            for way in ways if number % 2 == 0 else ways[::-1]:
                times[way].append(check(way, config))
        results[config.stem] = summary(times[arguments.before], times[arguments.after])
        print(config.stem)
        for name, row in results[config.stem].items():
            print(f"  {name:14}", *(f"{key} {value:.3f}" for key, value in row.items()), flush=True)
        if arguments.json:  # after each, as the whole takes minutes
            about = {"rounds": arguments.rounds, "python": platform.python_version(), "processors": os.cpu_count()}
            arguments.json.write_text(json.dumps({**about, "configs": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
