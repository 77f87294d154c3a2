"""Starting a module of ours in another process, with what this one imports and nothing of the working folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["child_environment", "child_words"]


def child_words(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module by this interpreter.

    With `-m` alone the working folder comes first among the places of modules: a stranger's `json.py` would be run.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """Return the environment in which such a process finds the modules that this one has found."""
    folders = [str(Path(__file__).parent.parent), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))}
