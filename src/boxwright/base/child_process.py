"""Starting one of our modules in a child process, with this process's import path but not the working directory."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this interpreter.

    `-P`: `-m` alone puts the working directory first on the import path, where a stray `json.py` would be imported.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """Return the environment in which a child process finds the modules that this process can import."""
    folders = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))}


def limit_memory(count: int) -> None:
    """Limit this process to `count` bytes of memory, and disable core dumps."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    # RLIMIT_AS also counts memory that is reserved but unused (thread stacks, mapped libraries); RLIMIT_DATA does not.
    memory = resource.RLIMIT_DATA if sys.platform.startswith("linux") else resource.RLIMIT_AS
    for kind, most in ((memory, count), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # above this process's hard limit
            resource.setrlimit(kind, (most, most))
