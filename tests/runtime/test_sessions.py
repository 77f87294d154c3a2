"""What a session keeps and what it says when it cannot run."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from boxwright.base.errors import ExportError
from boxwright.runtime.export_file import read_export_file
from boxwright.runtime.sessions import OnnxSession
from boxwright.weights.exports import open_export
from tests.exporters.tiny_exports import tiny_export

SCRIPT = """
import os, sys
from pathlib import Path
import numpy as np
from boxwright.runtime.sessions import open_session

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

session = open_session(sys.argv[1])
session.run(np.zeros((1, 480, 640, 3), np.uint8))
before = resident()
for side in map(int, sys.argv[2:]):
    session.run(np.zeros((1, side, side, 3), np.uint8))
print(resident() - before)
"""


@pytest.mark.slow_cases("sides0")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read as Linux tells it")
@pytest.mark.parametrize("sides", [(6000,), (2500, *[400] * 64)])
def test_the_memory_of_a_large_picture_is_given_back(sides: tuple[int, ...]) -> None:
    """As floats they take 412 and 72 MiB: after the one at once, after the other once only smaller ones come."""
    words = [sys.executable, "-c", SCRIPT, str(tiny_export(".onnx")), *map(str, sides)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 50


class _Recorded:
    """A runtime's session that remembers how it was asked to run."""

    def __init__(self, session: Any) -> None:
        self._session, self.options = session, list[Any]()

    def run(self, names: list[str], given: dict[str, Any], options: Any) -> Any:
        self.options.append(options)
        return self._session.run(names, given, options)


@pytest.mark.slow
def test_batches_of_several_sizes_keep_their_memory() -> None:
    """A server runs 8 pictures, then 1, then 8: what is given back between them is taken again, page by page."""
    session = OnnxSession(read_export_file(tiny_export(".onnx")))
    recorded = _Recorded(session._session)
    session._session = recorded
    for size in (8, 1) * 100:
        session.run(np.zeros((size, 480, 640, 3), np.uint8))
    assert recorded.options == [None] * 200


SIGNALED = """
import faulthandler, gc, signal, sys
from boxwright.runtime.sessions import open_session

faulthandler.enable()
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append("handled"))
first = open_session(sys.argv[1])
second = open_session(sys.argv[1])
del first
gc.collect()
del second
gc.collect()
signal.raise_signal(signal.SIGTERM)
print(*told)
"""


@pytest.mark.slow
def test_signals_are_still_handled_once_models_are_closed() -> None:
    """Each openvino.Core gives its thread another stack for signals, and frees it: the next signal ends the process.

    A server that takes a new version closes the old one first, then is told to end.
    """
    words = [sys.executable, "-c", SIGNALED, str(tiny_export(".xml"))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "handled\n")


@pytest.mark.parametrize("suffix", [".onnx", ".xml", ".pt2"])
def test_what_cannot_be_run_is_an_error_in_a_line(suffix: str) -> None:
    session = open_export(tiny_export(suffix)).session
    with pytest.raises(ExportError, match=f"tiny{suffix} cannot be run by") as problem:
        session.run(np.zeros((1, 4, 3), np.uint8))
    assert "\n" not in str(problem.value)


def test_threads_that_wait_soon_sleep() -> None:
    options = OnnxSession(read_export_file(tiny_export(".onnx")))._session.get_session_options()
    assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "50"
