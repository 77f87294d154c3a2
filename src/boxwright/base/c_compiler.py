"""Compiling the package's C sources where they run: once for a processor and a compiler, into the cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from boxwright.base.errors import BoxwrightError, first_line
from boxwright.base.files import cache_folder, cause, shown

# Without traps and errno, comparisons are computed for many values at once; numbers and NaN stay as they are.
_FLAGS = ("-O3", "-march=native", "-fno-trapping-math", "-fno-math-errno", "-fPIC", "-fopenmp")
_SECONDS = 120
_SEAL = hashlib.sha256().digest_size


class CompilerError(BoxwrightError):
    """No library could be made of a source: no compiler, an error of it, a full disk."""


def compiled_library(source: Path) -> ctypes.CDLL:
    """Return the library of a C source, compiled for this processor if the cache lacks it.

    OpenMP's functions are those that the process has loaded already, PyTorch's: a second OpenMP would have threads of
    its own, and both would wait for the cores that the other spins on.

    Raises:
        CompilerError: With the reason, in a line.
    """
    compiler = os.environ.get("CC") or "cc"
    found = shutil.which(compiler)
    if found is None:
        raise CompilerError(f"no C compiler: {compiler} is not found")
    try:
        target = cache_folder() / "native" / f"{source.stem}-{_digest(source, found)}.so"
        if not _is_whole(target):
            _compile(found, source, target)
        _check_owner(target)
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise CompilerError(f"{source.name}: {cause(error)}") from None


def _check_owner(library: Path) -> None:
    """Raise where another user may have written what would run here, as in a shared cache folder."""
    about = library.stat()
    if os.name == "posix" and (about.st_uid not in (os.getuid(), 0) or about.st_mode & 0o022):
        raise CompilerError(f"{shown(library)}: written by another user, or writable for others")


def _is_whole(library: Path) -> bool:
    """Return whether a library ends with the digest of what comes before; loading a damaged one kills the process."""
    content = library.read_bytes() if library.is_file() else b""
    return hashlib.sha256(content[:-_SEAL]).digest() == content[-_SEAL:]


def _digest(source: Path, compiler: str) -> str:
    """Return what a library depends on: source, headers, flags, the compiler, the processor's instructions."""
    whole = hashlib.sha256()
    for file in (source, *sorted(source.parent.glob("*.h"))):
        whole.update(file.read_bytes())
    stat = os.stat(compiler)
    whole.update(repr((_FLAGS, os.path.realpath(compiler), stat.st_size, stat.st_mtime_ns)).encode())
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.is_file() else []
    whole.update("\n".join(sorted({line for line in lines if line.startswith(("flags", "Features"))})).encode())
    return whole.hexdigest()[:24]


def _compile(compiler: str, source: Path, target: Path) -> None:
    """Compile beside the target and move the library there whole: two processes may do so at once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        compiled, linked = Path(folder, "one.o"), Path(folder, "one.so")
        # Linked without -fopenmp: its functions stay open until the library is loaded.
        _run(compiler, *_FLAGS, "-c", str(source), "-o", str(compiled))
        _run(compiler, "-shared", str(compiled), "-o", str(linked))
        with linked.open("r+b") as file:  # what follows a library's sections is not loaded
            file.write(hashlib.sha256(file.read()).digest())
        os.chmod(linked, 0o755)
        os.replace(linked, target)


def _run(*command: str) -> None:
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CompilerError(f"{command[0]} took more than {_SECONDS} s") from None
    if ended.returncode:
        raise CompilerError(f"{command[0]}: {first_line(RuntimeError(ended.stderr))}")
