"""Each signal in each phase of the program, in a terminal, with pipes and under nohup: its status, and what is printed."""

from __future__ import annotations

import itertools
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# The program stops in a phase, says so, and goes on once a file is there: while modules are imported, in a command, or
# while that saves, after a first SIGTERM.
PROGRAM = """
import os, signal, sys, time
from importlib.abc import MetaPathFinder
from boxwright.__main__ import run

phase, reached, go_on = sys.argv[1:]

def stop(name):
    if name == phase:
        open(reached, "w").close()
        while not os.path.exists(go_on):
            time.sleep(0.01)

class Importing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "boxwright.cli.commands":
            stop("importing")

def command(**_):
    try:
        stop("working")
        if phase == "saving":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
    finally:
        stop("saving")
        print("saving", flush=True)  # where it can: a closed terminal takes nothing
        open(f"{reached}.saved", "w").close()

sys.meta_path.insert(0, Importing())
import boxwright.cli.process
sys.argv = ["boxwright"]
if phase != "importing":
    import boxwright.cli.main
    boxwright.cli.main.app = command
run()
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
PHASES = ("importing", "working", "saving")
PLACES = ("pipe", "terminal", "nohup")
CASES = list(itertools.product(SIGNALS, PHASES, PLACES))


def expected(number: signal.Signals, phase: str, place: str) -> tuple[int, bool]:
    """Return the status, negative for a process that the signal itself ends, and whether the command saves."""
    if number == signal.SIGHUP and place == "nohup":
        # Ignored; without a command the program then prints its help, and what saves was ended by SIGTERM.
        return {"importing": (0, False), "working": (0, True), "saving": (143, True)}[phase]
    if phase == "importing":
        return (130 if number == signal.SIGINT else -number), False
    if phase == "saving":  # the second signal ends what takes too long; a closed terminal sends two
        return (143, True) if number == signal.SIGHUP else (130 if number == signal.SIGINT else -number, False)
    return 128 + number, True


def run_case(number: signal.Signals, phase: str, place: str, folder: Path) -> tuple[int, str]:
    """Return the program's status and what it printed."""
    reached, go_on = folder / "reached", folder / "go_on"
    command = [*(["nohup"] if place == "nohup" else []), sys.executable, "-c", PROGRAM, phase, str(reached), str(go_on)]
    ours, theirs = pty.openpty() if place == "terminal" else os.pipe()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    try:
        while not reached.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        # Where the signal is ignored or comes second to none, the program goes on.
        if number == signal.SIGHUP:
            go_on.touch()
        printed = b""
        try:
            while part := os.read(ours, 4096):
                printed += part
        except OSError:  # the terminal's other side is closed
            pass
        return process.wait(300), printed.decode()
    finally:
        process.kill()
        os.close(ours)


@pytest.mark.slow_except("SIGINT-importing-pipe", "SIGHUP-working-nohup", "SIGTERM-working-terminal")
@pytest.mark.parametrize(
    ("number", "phase", "place"), CASES, ids=[f"{number.name}-{phase}-{place}" for number, phase, place in CASES]
)
def test_a_signal_ends_each_phase(number: signal.Signals, phase: str, place: str, tmp_path: Path) -> None:
    status, printed = run_case(number, phase, place, tmp_path)
    assert "Traceback" not in printed
    assert (status, (tmp_path / "reached.saved").exists()) == expected(number, phase, place), printed
