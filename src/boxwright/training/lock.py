"""One run a folder: a lock that names its holder, and that a dead holder leaves open."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from boxwright.base.errors import TrainingError
from boxwright.base.files import cause, closed_in_children, lock, make_folder

LOCK = ".lock"
# How long the workers of a killed run may keep its lock: they look for their parent every five seconds.
_ORPHANS_SECONDS = 15.0
_POLL_SECONDS = 0.1


@contextmanager
def run_lock(folder: str | Path) -> Iterator[str]:
    """Hold a run's folder for this process; the system lets go of it when the process ends, however it ends.

    Yields:
        A line for the user: of a run that ended without letting go, whose place this one takes, or of a file system
        that cannot lock, where it is for the user to see that there is one run; else nothing.

    Raises:
        TrainingError: Where another run holds it, with process, host and time; or the lock cannot be written.
        OutputError: Where the folder cannot be made.
    """
    path = make_folder(folder) / LOCK
    try:
        # Without O_TRUNC: until the lock is ours, the content names the process that has it.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise TrainingError(f"{path}: cannot be written to: {cause(error)}") from None
    with closed_in_children(descriptor):
        unlocked = _acquire(descriptor, path)
        left = _holder(descriptor)
        try:
            _write_holder(descriptor)
        except OSError as error:
            raise TrainingError(f"{path}: could not be written: {cause(error)}") from None
        try:
            yield unlocked or (f"taking the place of {_named(left)}, which was killed" if left else "")
        finally:  # an error ends a run in order, too: only what is killed leaves its name
            with suppress(OSError):  # the run is done; the next one will only say that it takes a killed one's place
                os.ftruncate(descriptor, 0)


def _write_holder(descriptor: int) -> None:
    """Write the process, host and time of this run in place of what the lock's file says."""
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, json.dumps({"process": os.getpid(), "host": socket.gethostname(), "since": since}).encode())


RunState = Literal["training", "ended", "killed", "elsewhere"]


def read_run_state(folder: Path) -> RunState:
    """Return what the lock of a run's folder says, without taking it.

    Returns:
        "training" where a process of this host holds it, "elsewhere" where another host's did and may still, "killed"
        where its process is gone without having ended in order, "ended" otherwise.
    """
    try:
        holder = _parse_holder((folder / LOCK).read_bytes())
    except OSError:
        return "ended"
    if not holder:
        return "ended"
    if holder.get("host") != socket.gethostname():
        return "elsewhere"
    return "training" if _lives(holder) else "killed"


def _acquire(descriptor: int, path: Path) -> str:
    """Take the lock; return a warning if the file system has no locks."""
    until = time.monotonic() + _ORPHANS_SECONDS
    while True:
        try:
            refused = lock(descriptor)
        except BlockingIOError:
            holder = _holder(descriptor)
            if _lives(holder) or time.monotonic() > until:
                raise TrainingError(
                    f"{path.parent}: another run is in this folder: {_named(holder)}; use another model_dir, or stop it"
                ) from None
            time.sleep(_POLL_SECONDS)
            continue
        if refused is None:
            return ""
        if not refused:
            return "this system cannot lock files: a second run can write to the folder"
        return (
            f"{path.parent}: this file system cannot lock files ({refused}): a second run can write "
            "to the folder, and two would spoil each other's checkpoints"
        )


def _holder(descriptor: int) -> dict[str, object]:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return _parse_holder(os.read(descriptor, 4096))


def _parse_holder(text: bytes) -> dict[str, object]:
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _lives(holder: dict[str, object]) -> bool:
    """Tell whether the holder is a living process of this host, whose lock is not that of orphans."""
    process = holder.get("process")
    if holder.get("host") != socket.gethostname() or not isinstance(process, int):
        return False
    try:
        # Signal 0 is not sent; it asks whether the process exists. EPERM means that it does, as another user's.
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _named(holder: dict[str, object]) -> str:
    if not holder:
        return "a process that did not give its name"
    return f"process {holder.get('process')} on {holder.get('host')}, since {holder.get('since')}"
