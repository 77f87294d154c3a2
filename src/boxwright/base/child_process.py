"""Starting a module of ours in another process, with what this one imports and nothing of the working folder."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def child_words(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module by this interpreter.

    With `-m` alone the working folder comes first among the places of modules: a stranger's `json.py` would be run.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """Return the environment in which such a process finds the modules that this one has found."""
    folders = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))}


def limit_memory(count: int) -> None:
    """Let the system refuse this process more memory than so many bytes, and a file of it where it crashes."""
    try:
        import resource
    except ImportError:  # no POSIX system
        return
    # What is reserved and not used (threads' stacks, mapped libraries) is counted by RLIMIT_AS, not by RLIMIT_DATA.
    memory = resource.RLIMIT_DATA if sys.platform.startswith("linux") else resource.RLIMIT_AS
    for kind, most in ((memory, count), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # more than this process may have anyway
            resource.setrlimit(kind, (most, most))
