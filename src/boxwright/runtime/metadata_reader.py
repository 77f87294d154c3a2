"""Reading an exported file's metadata, without running it."""

from __future__ import annotations

from pathlib import Path

from boxwright.runtime.export_file import read_checked
from boxwright.runtime.metadata import Metadata
from boxwright.runtime.pt2_members import ABOUT, unpacked_members
from boxwright.runtime.sessions import open_session


def read_metadata(path: str | Path, *, allow_edited: bool = False) -> Metadata:
    """Return an exported file's metadata.

    Args:
        path: The file: .onnx, .xml, .tflite or .pt2 (which does not need PyTorch).
        allow_edited: Whether to read a file that was modified.

    Raises:
        ExportError: If the file is missing, damaged, modified or not ours, or its runtime is not installed.
    """
    if Path(path).suffix != ".pt2":
        return open_session(path, allow_edited=allow_edited).metadata
    file = read_checked(path, allow_edited=allow_edited)
    members = unpacked_members(file.data, file.name)
    return Metadata.from_json(members.get(ABOUT, b"").decode("utf-8", "replace"), file.name)
