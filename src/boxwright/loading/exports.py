"""Opening exported files of any format; PyTorch is imported for PyTorch's programs alone."""

from __future__ import annotations

from pathlib import Path

from boxwright.runtime import sessions
from boxwright.runtime.export_file import ExportFile, read_checked
from boxwright.runtime.exported import ExportedDetector, open_exported
from boxwright.runtime.formats import RUNTIMES
from boxwright.runtime.sessions import Session


def open_export(path: Path, threads: int = 0, *, allow_edited: bool = False) -> ExportedDetector:
    """Open an exported file of any format.

    Args:
        threads: How many its runtime may use; 0 for what it chooses.
        allow_edited: Whether a file is opened that is not as it was written.

    Raises:
        ExportError: Where there is none, or it is damaged or edited.
    """
    if path.suffix in RUNTIMES:
        return open_exported(path, threads, allow_edited=allow_edited)
    return ExportedDetector(session_of(read_checked(path, allow_edited=allow_edited)))


def session_of(file: ExportFile, threads: int = 0) -> Session:
    """Open an export's bytes in the runtime of its format, as they are.

    Args:
        threads: How many its runtime may use; 0 for what it chooses.

    Raises:
        ExportError: Where the file is of another format, damaged or not ours, or its runtime is not installed.
    """
    if file.suffix in RUNTIMES:
        return sessions.session_of(file, threads)
    from boxwright.loading.pt2_session import Pt2Session

    return Pt2Session(file)
