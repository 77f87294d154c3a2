"""Opening exported files of any format; PyTorch is imported only for PyTorch's programs."""

from __future__ import annotations

from pathlib import Path

from boxwright.runtime import sessions
from boxwright.runtime.devices import CPU, require_cpu
from boxwright.runtime.export_file import ExportFile, read_checked
from boxwright.runtime.exported import ExportedDetector, open_exported
from boxwright.runtime.formats import RUNTIMES
from boxwright.runtime.sessions import Session


def open_export(path: Path, threads: int = 0, device: str = CPU, *, allow_edited: bool = False) -> ExportedDetector:
    """Return an exported file of any format, opened.

    Args:
        threads: The runtime's number of threads; 0 for its default.
        device: "cpu", or another that the runtime has.
        allow_edited: Whether to open a file that was changed after it was written.

    Raises:
        ExportError: If it does not exist, or is damaged or edited, or the runtime has no such device.
    """
    if path.suffix.lower() in RUNTIMES:
        return open_exported(path, threads, device, allow_edited=allow_edited)
    return ExportedDetector(open_bytes(read_checked(path, allow_edited=allow_edited), threads, device))


def open_bytes(file: ExportFile, threads: int = 0, device: str = CPU) -> Session:
    """Return a session of an export's bytes in the runtime of its format.

    Raises:
        ExportError: If the file is damaged, of another format or not Boxwright's, or its runtime is not installed.
    """
    if file.suffix.lower() in RUNTIMES:
        return sessions.open_bytes(file, threads, device)
    require_cpu(device, "a PyTorch program")
    from boxwright.weights.pt2_archive import Pt2Session

    return sessions.with_fixed_shape(Pt2Session(file))
