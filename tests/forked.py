"""Children that begin with PyTorch imported: each is forked from a process that imported it once, which takes seconds.

For tests of what a process does: its status, its output, signals. How it starts (which modules are imported, what
variables do to Python or OpenMP) is a test's subject only with `subprocess`.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["boxwright.training.train", "boxwright.cli.main", "tests.forked"])


def run(
    command: Sequence[str],
    *,
    capture_output: bool = True,
    text: bool = True,
    check: bool = False,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE …` or `python -c CODE …` as `subprocess.run` does, with all that it writes captured."""
    assert capture_output
    assert text
    words = [str(word) for word in command]
    with TemporaryDirectory(prefix="boxwright-forked-") as folder:
        said = Path(folder, "out"), Path(folder, "err")
        child = _server.Process(target=_become, args=(words, said, dict(env or os.environ), str(cwd or os.getcwd())))
        child.start()
        child.join(timeout)
        if child.exitcode is None:
            child.kill()
            child.join()
            raise subprocess.TimeoutExpired(words, timeout or 0)
        out, err = (path.read_text(errors="replace") if path.exists() else "" for path in said)
    done = subprocess.CompletedProcess(words, child.exitcode, out, err)
    if check:
        done.check_returncode()
    return done


def _become(words: list[str], said: tuple[Path, Path], environment: dict[str, str], folder: str) -> None:
    """Be the process that a command starts; what ends it ends the process as it ends Python."""
    for stream, path in zip((sys.stdout, sys.stderr), said, strict=True):
        stream.flush()
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    kind = words.index("-m") if "-m" in words[:3] else words.index("-c")
    sys.argv = ["-c" if words[kind] == "-c" else words[kind + 1], *words[kind + 2 :]]
    if words[kind] == "-c":
        exec(compile(words[kind + 1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_module(words[kind + 1], run_name="__main__", alter_sys=True)
