"""Reading what an exported file says of itself, without running it."""

from __future__ import annotations

from pathlib import Path

from boxwright.runtime.export_file import read_checked
from boxwright.runtime.metadata import Metadata
from boxwright.runtime.pt2_members import ABOUT, unpacked_members
from boxwright.runtime.sessions import open_session


def read_metadata(path: str | Path, *, allow_edited: bool = False) -> Metadata:
    """Return what an exported file says of itself.

    Args:
        path: The file: .onnx, .xml, .tflite or .pt2, for which PyTorch is not needed.
        allow_edited: Whether a file is read that is not as it was written.

    Raises:
        ExportError: Where there is no such file, it is damaged, edited or not ours, or its runtime is not installed.
    """
    if Path(path).suffix != ".pt2":
        return open_session(path, allow_edited=allow_edited).metadata
    file = read_checked(path, allow_edited=allow_edited)
    members = unpacked_members(file.data, file.name)
    return Metadata.from_json(members.get(ABOUT, b"").decode("utf-8", "replace"), file.name)
