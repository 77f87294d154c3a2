from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import sys, time
from boxwright.cli import main as command
from boxwright.cli.console import console

class Slow:
    def __del__(self):
        print("in a destructor", flush=True)
        for _ in range(12000):
            time.sleep(0.01)

def long_work(*_, **__):
    one = Slow()
    del one
    print("after it", flush=True)
    while True:
        time.sleep(0.01)

command.app = long_work
sys.argv = ["boxwright"]
command.main()
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_comes_in_a_destructor_is_not_lost(number: signal.Signals, status: int) -> None:
    """Python drops an exception there, with a traceback on the terminal, and goes on."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "in a destructor\n"
        process.send_signal(number)
        try:
            assert process.wait(300) == status
        finally:
            process.kill()
        assert "Traceback" not in process.stderr.read()
