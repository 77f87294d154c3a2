"""The folder of data workers' sockets, inside the run's folder, so that a killed run leaves nothing elsewhere."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from contextlib import closing, suppress
from pathlib import Path

_IN_A_RUN = ".workers"
_LINK = "folder"
_PREFIX = "boxwright-workers-"
# A socket's address has 108 bytes on Linux, 104 elsewhere, including the NUL; multiprocessing appends two names.
_LONGEST = 103 - len("/pymp-12345678/listener-12345678")


def make_worker_folder(run: Path | None) -> Path:
    """Return a new folder in which workers can create sockets.

    The run's folder may be too deep for a socket's address, or on a file system without sockets. Then the result is in
    the system's temporary folder, with a link in the run's folder by which later runs can clean it up.

    Args:
        run: The run's folder; None for the system's temporary folder.
    """
    if run is None:
        return Path(tempfile.mkdtemp(prefix=_PREFIX))
    own = None
    with suppress(OSError):
        (run / _IN_A_RUN).mkdir(exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix="", dir=(run / _IN_A_RUN).resolve()))
        if _allows_sockets(own):
            return own
    elsewhere = Path(tempfile.mkdtemp(prefix=_PREFIX))
    if own is not None:
        with suppress(OSError):
            (own / _LINK).symlink_to(elsewhere)
    return elsewhere


def remove_worker_folder(folder: Path, run: Path | None) -> None:
    """Remove a folder of workers that have exited, and the link to it."""
    shutil.rmtree(folder, ignore_errors=True)
    if run is not None:
        for place in (run / _IN_A_RUN).glob("*"):
            if (place / _LINK).is_symlink() and os.readlink(place / _LINK) == str(folder):
                shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):  # not empty, or never created
            (run / _IN_A_RUN).rmdir()


def clear_worker_folders(run: Path) -> None:
    """Remove the worker folders of killed runs; the run's folder must belong to this process alone."""
    temporary = Path(tempfile.gettempdir()).resolve()
    for place in (run / _IN_A_RUN).glob("*"):
        with suppress(OSError):
            target = Path(os.readlink(place / _LINK))
            # A link is untrusted: only a folder that this module created is removed.
            if target.parent.resolve() == temporary and target.name.startswith(_PREFIX) and not target.is_symlink():
                shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(run / _IN_A_RUN, ignore_errors=True)


def _allows_sockets(folder: Path) -> bool:
    if len(os.fsencode(folder)) > _LONGEST or not hasattr(socket, "AF_UNIX"):
        return False
    with closing(socket.socket(socket.AF_UNIX)) as tried:
        try:
            tried.bind(str(folder / "socket"))
        except OSError:  # many network file systems have none
            return False
    (folder / "socket").unlink()
    return True
