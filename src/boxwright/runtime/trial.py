"""Opening an exported file, and running it once, in a child process.

Runtimes trust the files they are given: LiteRT aborts on some damaged ones, others loop forever or exhaust memory.
Here that ends a child process and becomes a one-line error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from signal import Signals
from typing import Any

import numpy as np

from boxwright.base.errors import BoxwrightError, ExportError
from boxwright.base.limits import TRIAL_BYTES, TRIAL_SECONDS
from boxwright.base.worker_pools import child_environment, limit_memory, module_command
from boxwright.runtime.export_file import ExportFile
from boxwright.runtime.optional import require_library

_PICTURE = (63, 85)
_ANSWER = "boxwright-trial:"
_POLL_S = 0.05
_LIBRARIES = {
    ".onnx": "onnxruntime",
    ".xml": "openvino",
    ".tflite": "ai_edge_litert.interpreter",
    ".pt2": "torch.export",
}


def try_in_child(file: ExportFile, opener: str, stopped: Callable[[], bool] = lambda: False) -> None:
    """Open a file's bytes in a child process, and run it on a picture of noise.

    Args:
        opener: The module whose `open_bytes` opens it.
        stopped: Polled while waiting; once it returns true, the child is killed.

    Raises:
        ExportError: If that fails, crashes, exceeds the limits on time or memory, or was stopped.
    """
    sizes = [str(len(part)) for part in file.parts]
    words = module_command("boxwright.runtime.trial", opener, str(file.path), str(TRIAL_BYTES.value), *sizes)
    # Files, not pipes: a grandchild that a library starts would keep a pipe open after the child has ended.
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as given:
        for part in file.parts:
            given.write(part)
        given.seek(0)
        child = subprocess.Popen(
            words, stdin=given, stdout=said, stderr=subprocess.DEVNULL, env=child_environment(), start_new_session=True
        )
        try:
            _wait_for(child, file, stopped)
        finally:
            child.kill()
            child.wait()
            if hasattr(os, "killpg"):
                with suppress(OSError):
                    # The child leads a group of its own: processes that a library started end with it.
                    os.killpg(child.pid, Signals.SIGKILL)
        said.seek(0)
        answer = _answer_in(said.read())
    if answer is None:
        raise ExportError(f"{file.name} cannot be opened: {_exit_reason(child.returncode)}")
    if answer:
        raise ExportError(answer)


def _wait_for(child: subprocess.Popen[bytes], file: ExportFile, stopped: Callable[[], bool]) -> None:
    """Wait until a child has ended, within the time limit."""
    until = time.monotonic() + TRIAL_SECONDS.value
    while child.poll() is None:
        time.sleep(_POLL_S)
        if stopped():
            raise ExportError(f"{file.name} was not opened: the server is shutting down")
        if time.monotonic() > until and child.poll() is None:
            raise ExportError(
                f"{file.name} was not opened and run within {TRIAL_SECONDS.value} s "
                f"({TRIAL_SECONDS.variable} raises that)"
            )


def _answer_in(said: bytes) -> str | None:
    """Return a child's report on its file: empty if all is well; None if it died before reporting."""
    lines = said.decode("utf-8", "replace").splitlines()
    answers = [json.loads(line.removeprefix(_ANSWER)) for line in lines if line.startswith(_ANSWER)]
    return str(answers[-1]) if answers else None


def _exit_reason(status: int) -> str:
    if status < 0:
        return f"its runtime crashes the process that opens it ({Signals(-status).name})"
    return f"the process that opens it ended with status {status} ({TRIAL_BYTES.variable} raises its memory)"


def _tried(file: ExportFile, opener: str) -> str:
    """Open and run a file; return what is wrong with it, or an empty string."""
    try:
        session: Any = import_module(opener).open_bytes(file, 1)
        size = session.metadata.image_size or _PICTURE
        shape = (1, *size, session.metadata.image_channels)
        session.run(np.random.default_rng(0).integers(0, 256, shape, np.uint8))
    except BoxwrightError as error:
        said = str(error)
        return f"{said} ({TRIAL_BYTES.variable} raises its memory limit)" if "alloc" in said.lower() else said
    except MemoryError:
        return f"{file.name} needs more memory than allowed for opening it ({TRIAL_BYTES.variable} raises that)"
    return ""


def main() -> None:
    """Try the file whose name and sizes are in the arguments and whose bytes are on standard input."""
    opener, path, memory, *sizes = sys.argv[1:]
    with suppress(ExportError):  # a library loaded under the limit would seem not to be installed
        require_library(_LIBRARIES[Path(path).suffix.lower()], "")
    limit_memory(int(memory))
    parts = [sys.stdin.buffer.read(int(size)) for size in sizes]
    answer = _tried(ExportFile(Path(path), *parts), opener)
    sys.stdout.write(f"{_ANSWER}{json.dumps(answer)}\n")
    sys.stdout.flush()
    os._exit(0)  # a runtime's threads may hang at exit


if __name__ == "__main__":
    main()
