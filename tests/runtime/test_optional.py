from __future__ import annotations

import subprocess
import sys

import pytest

from boxwright.base.errors import ExportError
from boxwright.runtime.optional import require_library

SCRIPT = """
import os, sys
forks = []
os.register_at_fork(before=lambda: forks.append(1))
from boxwright.runtime.optional import require_library
core = require_library("openvino", "openvino").Core()
print(forks, [name for name in sys.modules if name.startswith("openvino_telemetry.")])
"""


def test_openvino_forks_nothing_and_sends_nothing() -> None:
    """Its telemetry forks the process from a thread, on import: a server's, with locks that other threads hold."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout == "[] []\n"


def test_what_is_not_installed_says_how_it_is() -> None:
    with pytest.raises(ExportError, match=r"no_such_library is not installed .*; pip install 'boxwright\[extra\]'"):
        require_library("no_such_library", "extra")
