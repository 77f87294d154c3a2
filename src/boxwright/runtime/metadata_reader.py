"""Reading what an exported file says of itself, without running it."""

from __future__ import annotations

import zipfile
from pathlib import Path

from boxwright.errors import ExportError
from boxwright.files import is_file, shown
from boxwright.runtime.metadata import KEY, Metadata
from boxwright.runtime.sessions import open_session

__all__ = ["read_metadata"]

_MOST_BYTES = 16 * 2**20


def read_metadata(path: str | Path) -> Metadata:
    """Return what an exported file says of itself.

    Args:
        path: The file: .onnx, .xml or .pt2.

    Returns:
        The metadata.

    Raises:
        ExportError: Where there is no such file, it is damaged or not ours, or its runtime is not installed.
    """
    if Path(path).suffix != ".pt2":
        return open_session(path).metadata
    if not is_file(path):
        raise ExportError(f"{shown(path)}: no such file")
    try:
        with zipfile.ZipFile(path) as archive:
            found = [item for item in archive.infolist() if item.filename.endswith(f"/extra/{KEY}.json")]
            text = archive.read(found[0]).decode() if found and found[0].file_size <= _MOST_BYTES else None
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError, NotImplementedError, RuntimeError) as error:
        raise ExportError(f"{shown(path)} is no PyTorch program: {error}") from None
    return Metadata.from_json(text, shown(path))
