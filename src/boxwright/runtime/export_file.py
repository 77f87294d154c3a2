"""An exported file's bytes: read once, checked, and opened from memory, so that what runs is what was checked.

A runtime that maps a file, or reads it a second time, runs whatever the file has become since.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from boxwright.base.errors import ExportError
from boxwright.base.files import is_file, read_file, shown
from boxwright.runtime.pt2_members import sealed_parts, unpacked_members
from boxwright.runtime.seal import is_whole, seals_in

_TRUST = "open it with --allow_edited (in Python allow_edited=True) if you trust it as it is"
_WEIGHTS = {".xml": ".bin"}


@dataclass(frozen=True)
class ExportFile:
    """What an export is made of.

    Attributes:
        path: Where it was read.
        data: The file's bytes.
        weights: Those of the file beside it, of formats of two files (OpenVINO's .bin); None for others.
    """

    path: Path
    data: bytes
    weights: bytes | None = None

    @property
    def suffix(self) -> str:
        """The ending of its name, which says its format."""
        return self.path.suffix

    @property
    def name(self) -> str:
        """The path, for messages."""
        return shown(self.path)

    @property
    def parts(self) -> list[bytes]:
        """The bytes of its files, in order."""
        return [self.data] if self.weights is None else [self.data, self.weights]

    def sha256(self) -> str:
        """Return the SHA-256 of its files, one after the other, as they are."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(part)
        return digest.hexdigest()


def export_paths(path: str | Path) -> list[Path]:
    """Return the files that an export consists of, by the format that its name says."""
    path = Path(path)
    return [path, path.with_suffix(_WEIGHTS[path.suffix])] if path.suffix in _WEIGHTS else [path]


def read_export_file(path: str | Path) -> ExportFile:
    """Read an export, and what lies beside it where its format has two files.

    Returns:
        Its bytes.

    Raises:
        ExportError: Where one of them is not there or cannot be read.
    """
    path, *beside = export_paths(path)
    if not is_file(path):
        raise ExportError(f"{shown(path)}: no such file")
    for other in beside:
        if not is_file(other):
            raise ExportError(f"{shown(path)}: its weights, {other.name}, are not beside it")
    return ExportFile(path, *(read_file(one, ExportError) for one in (path, *beside)))


def read_checked(path: str | Path, *, allow_edited: bool = False) -> ExportFile:
    """Read an export that must be as it was written.

    Returns:
        Its bytes.

    Raises:
        ExportError: As `read_export_file` and `check_seal`.
    """
    file = read_export_file(path)
    if not allow_edited:
        check_seal(file)
    return file


def is_as_written(file: ExportFile) -> bool:
    """Tell whether an export's checksum holds."""
    parts = _parts(file)
    seals = seals_in(parts)
    return len(seals) == 1 and is_whole(parts, seals[0])


def check_seal(file: ExportFile) -> None:
    """Raise where an export is not what was written.

    Args:
        file: Its bytes.

    Raises:
        ExportError: Where it has no checksum, or another.
    """
    if is_as_written(file):
        return
    if seals_in(_parts(file)):
        what = "is not as it was written: it is damaged, or was edited"
    else:
        what = "has no checksum: another program wrote it, or a Boxwright before checksums, or it is damaged"
    raise ExportError(f"{file.name} {what}; export it again, or {_TRUST}")


def _parts(file: ExportFile) -> list[bytes]:
    """Return what the checksum is of."""
    return sealed_parts(unpacked_members(file.data, file.name)) if file.suffix == ".pt2" else file.parts
