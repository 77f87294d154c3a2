"""Allocations that fail by their number in a command, by a library that is built here and preloaded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

# Imports once, then runs the command in a forked process for each number: 0, where none fails, 1, and from there in
# steps to the last allocation that the first one made.
PROGRAM = """
import ctypes, json, os, runpy, shutil, sys, time
from pathlib import Path

folder, before, words, every = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
library = ctypes.CDLL(None)
library.count_allocations.restype = ctypes.c_long
from boxwright.base.threads import prepare_threads
prepare_threads()
import boxwright.cli.main, boxwright.cli.process, boxwright.training.train, boxwright.inference.predict, boxwright.data.convert

number, last = 0, 1
while number <= last:
    there = folder / str(number)
    shutil.copytree(before, there)
    child = os.fork()
    if not child:
        os.chdir(there)
        for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
            os.dup2(os.open(folder / f"{number}.{name}", os.O_WRONLY | os.O_CREAT), stream.fileno())
        sys.argv = ["boxwright", *words]
        library.fail_allocation(ctypes.c_long(number))
        try:
            boxwright.cli.main.main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            import traceback
            traceback.print_exc()
            status = 99
        (folder / f"{number}.count").write_text(str(library.count_allocations()))
        library.fail_allocation(ctypes.c_long(-1))
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)
    until = time.monotonic() + 120
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(child, 9)
            ended = os.waitpid(child, 0)
            break
        time.sleep(0.01)
    print(json.dumps([number, os.waitstatus_to_exitcode(ended[1])]), flush=True)
    if number == 0:
        last = int((folder / "0.count").read_text())
    number += every if number else 1
"""


@dataclass(frozen=True)
class Outcome:
    """How a command ended, one of whose allocations failed.

    Attributes:
        number: Of that allocation; 0 if none failed.
        status: Of the process; negative for the signal that ended it.
        made: How many allocations of the size there were; 0 if the process was ended.
        folder: Where it ran.
    """

    number: int
    status: int
    said: str
    made: int
    folder: Path


def failing_malloc(folder: Path) -> Path:
    """Return the library; skip the test where none can be built."""
    if not sys.platform.startswith("linux") or shutil.which("cc") is None:
        pytest.skip("no C compiler, or no Linux, whose libraries can be preloaded")
    library = folder / "failing_malloc.so"
    source = Path(__file__).with_suffix("").with_name("failing_malloc.c")
    done = subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-o", library, source], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"the library cannot be built: {done.stderr[-300:]}")
    return library


def run_failing(library: Path, before: Path, words: Sequence[str], every: int = 1) -> Iterator[Outcome]:
    """Run a command in copies of a folder, first whole, then with one failing allocation each; yield how each ended.

    Args:
        every: Of how many allocations one fails, from the first.
    """
    folder = before.parent / f"{before.name}-{words[0]}"
    folder.mkdir()
    environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", PROGRAM, folder, before, json.dumps(list(words)), every]
    process = subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            number, status = json.loads(line)
            texts = [(folder / f"{number}.{name}").read_text(errors="replace") for name in ("out", "err")]
            count = folder / f"{number}.count"
            made = int(count.read_text()) if count.exists() else 0
            yield Outcome(number, status, "".join(texts), made, folder / str(number))
            shutil.rmtree(folder / str(number))
    assert process.returncode == 0
