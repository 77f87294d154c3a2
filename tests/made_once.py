"""What is made once for all processes of a run of the tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir

from filelock import FileLock

_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that the first process of this run to ask for it fills; the others wait."""
    folder = Path(gettempdir()) / f"boxwright-tests-{_RUN}" / name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not (whole := folder / "whole").exists():
            make(folder)
            whole.touch()
    return folder
