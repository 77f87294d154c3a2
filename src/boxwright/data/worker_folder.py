"""Where data workers have their sockets: in a run's own folder, so that nothing of a killed run is left elsewhere."""

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
# The address of a socket has 108 bytes on Linux, 104 elsewhere, with one for its end; multiprocessing adds two names.
_LONGEST = 103 - len("/pymp-12345678/listener-12345678")


def make_worker_folder(run: Path | None) -> Path:
    """Make a folder for the sockets of workers, where sockets can be.

    A run's folder may lie too deep for the address of a socket, or on a file system that has none. Then it is in the
    system's temporary folder, and the run's holds a link to it, by which it is found where a kill leaves it.

    Args:
        run: The run's folder; None for the system's temporary folder.

    Returns:
        The folder, of this call alone.
    """
    if run is None:
        return Path(tempfile.mkdtemp(prefix=_PREFIX))
    own = None
    with suppress(OSError):
        (run / _IN_A_RUN).mkdir(exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix="", dir=(run / _IN_A_RUN).resolve()))
        if _has_room_for_sockets(own):
            return own
    elsewhere = Path(tempfile.mkdtemp(prefix=_PREFIX))
    if own is not None:
        with suppress(OSError):
            (own / _LINK).symlink_to(elsewhere)
    return elsewhere


def remove_worker_folder(folder: Path, run: Path | None) -> None:
    """Remove a folder of workers that have ended, and what tells of it in the run's folder."""
    shutil.rmtree(folder, ignore_errors=True)
    if run is not None:
        for place in (run / _IN_A_RUN).glob("*"):
            if (place / _LINK).is_symlink() and os.readlink(place / _LINK) == str(folder):
                shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):  # others of this run are in it, or none ever was
            (run / _IN_A_RUN).rmdir()


def clear_worker_folders(run: Path) -> None:
    """Remove the folders of workers of runs that were killed; the run's folder must be this process's alone."""
    temporary = Path(tempfile.gettempdir()).resolve()
    for place in (run / _IN_A_RUN).glob("*"):
        with suppress(OSError):
            target = Path(os.readlink(place / _LINK))
            # A link is only what a file says: nothing else than a folder of our own making is removed by it.
            if target.parent.resolve() == temporary and target.name.startswith(_PREFIX) and not target.is_symlink():
                shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(run / _IN_A_RUN, ignore_errors=True)


def _has_room_for_sockets(folder: Path) -> bool:
    if len(os.fsencode(folder)) > _LONGEST or not hasattr(socket, "AF_UNIX"):
        return False
    with closing(socket.socket(socket.AF_UNIX)) as tried:
        try:
            tried.bind(str(folder / "socket"))
        except OSError:  # many file systems on networks have none
            return False
    (folder / "socket").unlink()
    return True
