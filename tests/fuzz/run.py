"""Fuzzing: `python -m tests.fuzz.run --seconds 60` changes good inputs at random, and looks for what is not refused.

Each reader runs in a process that is watched: what takes too long, too much memory or the process itself is a
finding, and the input that did it is written down. The same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from boxwright.base.errors import BoxwrightError
from tests.fuzz.commands import fuzz_commands
from tests.fuzz.grammar import fuzz_grammars
from tests.fuzz.http import fuzz_http
from tests.fuzz.mutate import mutate
from tests.fuzz.readers import READERS

# An input may take so long and so much memory, beyond what the reader has at its start.
SECONDS, MEMORY = 60, 3 * 2**30
_BATCH = 400
# What is no reader: command lines, requests to a server, and documents that are drawn instead of changed.
_OTHERS = {"commands": fuzz_commands, "http": fuzz_http, "grammar": fuzz_grammars}


def findings_folder() -> Path:
    """Return the folder for inputs that were not met with a clear error: `BOXWRIGHT_FINDINGS`, or `findings`."""
    return Path(os.environ.get("BOXWRIGHT_FINDINGS") or "findings")


def inputs(name: str, seed: int) -> Iterator[bytes]:
    """Yield changed inputs without end, the same for the same seed."""
    rng = random.Random(f"{name} {seed}")
    seeds = READERS[name].seeds()
    while True:
        yield mutate(rng.choice(seeds), rng, seeds)


def fuzz(name: str, seed: int, seconds: float, count: int) -> Counter[str]:
    """Give a reader changed inputs for so many seconds, or so many of them; return what became of them."""
    found: Counter[str] = Counter()
    source, until = inputs(name, seed), time.monotonic() + seconds
    while time.monotonic() < until and found.total() < count:
        batch = [next(source) for _ in range(min(_BATCH, count - found.total()))]
        found += _in_a_process(name, batch, until)
    return found


def _in_a_process(name: str, batch: list[bytes], until: float) -> Counter[str]:
    """Read a batch in a forked process; what ends that is a finding, and the rest goes to another."""
    found: Counter[str] = Counter()
    while batch:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            _read_all(name, batch, writing, until)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            lines = pipe.read().splitlines()
        _, status = os.waitpid(child, 0)
        kinds = [line for line in lines if line != "end"]
        found.update(kinds)
        if lines and lines[-1] == "end":
            return found
        died = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        what = "took too long" if died == signal.SIGALRM else f"ended the process (signal {died})"
        write_finding(name, batch[len(kinds)], what)
        found["FINDING"] += 1
        batch = batch[len(kinds) + 1 :]
    return found


def _read_all(name: str, batch: list[bytes], pipe: int, until: float) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    faulthandler.disable()  # who waits says what ended this process
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    folder = Path(tempfile.mkdtemp(prefix="boxwright-fuzz-"))
    for data in batch:
        if time.monotonic() > until:
            break
        signal.alarm(SECONDS)
        os.write(pipe, f"{_read(name, data, folder)}\n".encode())
        signal.alarm(0)
    shutil.rmtree(folder, ignore_errors=True)
    os.write(pipe, b"end\n")


def _read(name: str, data: bytes, folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        READERS[name].read(data, folder)
    except BoxwrightError as error:
        if len(str(error)) > 5000:
            write_finding(name, data, f"an error of {len(str(error))} characters")
            return "FINDING"
        return "refused"
    except BaseException:  # noqa: BLE001  # that is what is looked for
        write_finding(name, data, traceback.format_exc())
        return "FINDING"
    return "read"


def write_finding(name: str, data: bytes, what: str) -> None:
    """Write an input down, and what became of it."""
    folder = findings_folder()
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob(f"{name}-*.txt")))
    (folder / f"{name}-{number}.bin").write_bytes(data)
    (folder / f"{name}-{number}.txt").write_text(f"[{name}] {what}\n", errors="replace")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*", help=f"which readers: {', '.join([*READERS, *_OTHERS])}; default: all")
    parser.add_argument("--seconds", type=float, default=60, help="for each reader")
    parser.add_argument("--count", type=int, default=10**9, help="inputs for each reader at most")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ["BOXWRIGHT_CACHE"] = tempfile.mkdtemp(prefix="boxwright-fuzz-cache-")
    total: Counter[str] = Counter()
    for name in arguments.readers or [*READERS, *_OTHERS]:
        if name in _OTHERS:
            found = _OTHERS[name](arguments.seed, arguments.seconds, arguments.count, write_finding)
        else:
            found = fuzz(name, arguments.seed, arguments.seconds, arguments.count)
        total += found
        shown = ", ".join(f"{number} {kind}" for kind, number in sorted(found.items()))
        print(f"{name:<14}{found.total():>9}  {shown}", flush=True)
    shutil.rmtree(os.environ["BOXWRIGHT_CACHE"], ignore_errors=True)
    print(
        f"{'all':<14}{total.total():>9}  {total['FINDING']} findings"
        + (f": {findings_folder()}" if total["FINDING"] else "")
    )
    return 1 if total["FINDING"] else 0


if __name__ == "__main__":
    sys.exit(main())
