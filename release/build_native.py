"""Compiles the optional extension in C of `native/` into `src/boxwright/_native.so`, where a compiler is.

Hatchling runs this (pyproject.toml) for wheels and editable installs; `python release/build_native.py` does the same in
a checkout. The extension has plain functions that `boxwright/nn/ops/native.py` calls: it fits every Python and PyTorch.
Without a compiler the wheel is pure, and PyTorch's operators compute.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent.parent
TARGET = "src/boxwright/_native.so"
# Without traps and errno, comparisons are computed for many values at once; numbers and NaN stay as they are.
FLAGS = ("-std=gnu11", "-O3", "-fno-trapping-math", "-fno-math-errno", "-fPIC", "-fvisibility=hidden", "-fopenmp")
X86_LEVELS = {
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"),
}


class NativeError(Exception):
    """No extension could be made: no compiler, or an error of it."""


def levels() -> dict[str, tuple[str, ...]]:
    """The versions of each function by name, with the compiler's flags for them; `native/level.c` chooses one."""
    on_x86 = platform.machine() in ("x86_64", "AMD64")
    return {"portable": (), **(X86_LEVELS if on_x86 else {})}


def compile_extension(root: Path) -> Path:
    """Compile the extension, replace the one before whole, and return its path.

    The functions of OpenMP stay open: those that PyTorch has loaded are used, since a second OpenMP would have threads
    of its own, and both would wait for the cores that the other spins on.
    """
    compiler = shlex.split(os.environ.get("CC") or "cc")
    source, target = root / "native", root / TARGET
    with tempfile.TemporaryDirectory() as folder:
        objects: list[str] = []
        for path in sorted(source.glob("*.c")):
            versions = {"": ()} if path.stem == "level" else levels()
            for level, flags in versions.items():
                objects.append(str(Path(folder, f"{path.stem}-{level}.o")))
                run(*compiler, *FLAGS, *flags, f"-DLEVEL={level}", "-c", str(path), "-o", objects[-1])
        linked = Path(folder, target.name)
        run(*compiler, "-shared", "-s", *objects, "-o", str(linked))
        beside = target.with_name(f"{target.name}.{os.getpid()}")
        beside.write_bytes(linked.read_bytes())
        os.replace(beside, target)
    return target


def run(*command: str) -> None:
    """Run the compiler.

    Raises:
        NativeError: With its first line, if it is missing or fails.
    """
    try:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise NativeError(f"{command[0]}: {error.strerror}") from None
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line] or [f"it ended with {error.returncode}"]
        raise NativeError(f"{command[0]}: {lines[0].strip()}") from None


class NativeExtension(BuildHookInterface):
    """Adds the extension to a wheel, and the platform to its name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the extension, or say in a line that there is none."""
        try:
            compile_extension(Path(self.root))
        except NativeError as error:
            (Path(self.root) / TARGET).unlink(missing_ok=True)  # an older one may not fit
            self.app.display_warning(f"no native extension, PyTorch's operators compute: {error}")
            return
        build_data["artifacts"].append(TARGET)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


if __name__ == "__main__":
    try:
        print(compile_extension(ROOT))
    except NativeError as problem:
        sys.exit(f"no native extension: {problem}")
