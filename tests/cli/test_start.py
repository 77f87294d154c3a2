"""What is imported before anything is asked for: help and `import boxwright` answer at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from boxwright.cli.commands import COMMANDS

# Tenths of a second to seconds each.
HEAVY = {
    "boxwright.config", "boxwright.data", "boxwright.training", "email", "importlib.metadata", "lark", "numpy", "PIL",
    "pydantic", "rich.progress", "torch", "yaml",
}  # fmt: skip
LOADED = "print(*sorted(sys.modules), sep='\\n', file=sys.stderr)"


def loaded_after(code: str) -> set[str]:
    """Return the modules that a new process has imported after some lines of code."""
    done = subprocess.run(
        [sys.executable, "-c", f"import atexit, sys\natexit.register(lambda: {LOADED})\n{code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [["--help"], ["-h"], []])
def test_help_imports_no_command(words: list[str]) -> None:
    code = f"sys.argv = ['boxwright', *{words}]\nfrom boxwright.cli.main import main\n"
    code += "try:\n    main()\nexcept SystemExit as end:\n    assert (end.code or 0) in (0, 2)"
    loaded = loaded_after(code)
    assert "boxwright.cli.main" in loaded
    assert not loaded & HEAVY
    assert not loaded & {f"boxwright.cli.{path.split('.')[0]}" for path, _ in COMMANDS.values()}


def test_the_package_imports_little() -> None:
    loaded = loaded_after("import boxwright")
    assert "boxwright" in loaded
    assert not loaded & (HEAVY | {"typer", "rich"})


def test_a_command_imports_its_own_module() -> None:
    """So that the tests above can fail."""
    code = "sys.argv = ['boxwright', 'config', '--help']\nfrom boxwright.cli.main import main\nmain()"
    loaded = loaded_after(code)
    assert "boxwright.cli.config" in loaded
    assert "boxwright.cli.train" not in loaded


def test_what_is_imported_is_not_collected() -> None:
    """One collection of PyTorch's objects takes half a second; later objects are collected as ever."""
    code = """
import gc
from boxwright.cli.console import importing
with importing():
    import torch
    assert not gc.isenabled()
kept = gc.get_freeze_count()
with importing():
    cycle = []
    cycle.append(cycle)
assert gc.isenabled() and kept > 50_000 and gc.get_freeze_count() == kept, (kept, gc.get_freeze_count())
"""
    assert "torch" in loaded_after(code)
