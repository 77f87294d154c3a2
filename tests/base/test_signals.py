"""Signals that end a program: which they are, and what a closed terminal leaves of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from boxwright.base.signals import end_signals, second_handler

# A program in a terminal of its own, which is closed once it runs; it saves slowly, and a second SIGHUP comes meanwhile.
TERMINAL = """
import os, pty, signal, sys, time
program, saved = sys.argv[1:]
child, master = pty.fork()
if child == 0:
    os.execv(sys.executable, [sys.executable, "-c", program, saved])
said = b""
while b"running" not in said:
    said += os.read(master, 100)
os.close(master)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""
PROGRAM = """
import os, signal, sys, time
from boxwright.cli import main as command
def work(**_):
    try:
        print("running", flush=True)
        while True:
            time.sleep(0.01)
    finally:
        os.kill(os.getpid(), signal.SIGHUP)
        print("to a terminal that is gone", flush=True)
        open(sys.argv[1], "w").close()
command.app = work
saved, sys.argv = sys.argv[1], ["boxwright"]
sys.argv.append(saved)
command.main()
"""


def test_a_closed_terminal_lets_a_program_save(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TERMINAL, PROGRAM, str(tmp_path / "saved")], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{128 + signal.SIGHUP}\n", done.stderr
    assert (tmp_path / "saved").is_file()


def test_what_a_program_was_started_to_ignore_does_not_end_it() -> None:
    """As by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert end_signals() == [signal.SIGTERM, signal.SIGUSR1]
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert end_signals() == [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("number", "handler"), [(signal.SIGTERM, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_IGN)], ids=["term", "hup"]
)
def test_the_second_signal(number: signal.Signals, handler: signal.Handlers) -> None:
    assert second_handler(number, signal.SIG_DFL) is handler
