"""An exported file's bytes: read once, checked, and opened from memory, so that what runs is what was checked.

A runtime that maps a file, or reads it again, would run whatever the file has become since. Two zip readers may see
different contents in one .pt2; so this module alone reads its archive, without PyTorch, which gets one rewritten from
what was read.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from boxwright.base.errors import ExportError
from boxwright.base.files import is_file, read_file, shown
from boxwright.base.limits import ARCHIVE_FILES, CHECKPOINT_BYTES
from boxwright.runtime.foreign_file import foreign_file
from boxwright.runtime.metadata import KEY, is_whole, seals_in

# Members by name, without their common folder.
Members = dict[str, bytes]

ABOUT = f"extra/{KEY}.json"
_KNOWN = re.compile(
    r"models/model\.json|extra/boxwright\.json|archive_format|archive_version|byteorder"
    r"|\.data/(version|serialization_id)|data/sample_inputs/model\.pt"
    r"|data/weights/(model_weights_config\.json|weight_[0-9]{1,6})"
    r"|data/constants/(model_constants_config\.json|tensor_[0-9]{1,6})"
)
_FOLDER = "detector"


def unpacked_members(data: bytes, name: str) -> Members:
    """Return an archive's members; ExportError if it is damaged, or has any that Boxwright does not write."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            sizes = sum(info.file_size for info in infos)
            if problem := ARCHIVE_FILES.exceeded(len(infos)) or CHECKPOINT_BYTES.exceeded(sizes):
                raise ExportError(f"{name}: {problem}")
            if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
                raise ExportError(f"{name}: its members are compressed, which PyTorch never does")
            members = [(info.filename.partition("/")[2], archive.read(info)) for info in infos]
    except (OSError, ValueError, RuntimeError, NotImplementedError, EOFError, zipfile.BadZipFile) as error:
        raise ExportError(f"{name} is not a PyTorch program, or damaged: {str(error)[:200]}") from None
    for member, _ in members:
        if not _KNOWN.fullmatch(member):
            raise ExportError(
                f"{name} contains {member[:80]!r}, which `boxwright export` does not write and may be code"
            )
    # Readers differ in which of the two they take.
    if len(dict(members)) < len(members):
        raise ExportError(f"{name} contains two members with the same name")
    return dict(members)


def packed_members(members: Mapping[str, bytes]) -> bytes:
    """Return an archive of members laid out as PyTorch's own: uncompressed, in one folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for member, content in members.items():
            # ZipInfo's default time is 1980, so that equal programs give equal files.
            archive.writestr(zipfile.ZipInfo(f"{_FOLDER}/{member}"), content)
    return buffer.getvalue()


def sealed_parts(members: Members) -> list[bytes]:
    """Return names and contents in a fixed order, with the metadata last, for `seal` and `check_seal`."""
    others = sorted((name, content) for name, content in members.items() if name != ABOUT)
    return [*(part for name, content in others for part in (name.encode(), content)), members.get(ABOUT, b"")]


_TRUST = "open it with --allow_edited (in Python allow_edited=True) if you trust it"
_WEIGHTS = {".xml": ".bin"}


@dataclass(frozen=True)
class ExportFile:
    """The bytes of an export.

    Attributes:
        data: The file's bytes.
        weights: The second file's bytes, in formats of two files (OpenVINO's .bin); None for others.
    """

    path: Path
    data: bytes
    weights: bytes | None = None

    @property
    def suffix(self) -> str:
        """The suffix, which determines the format."""
        return self.path.suffix.lower()

    @property
    def name(self) -> str:
        """The path, for messages."""
        return shown(self.path)

    @property
    def parts(self) -> list[bytes]:
        """The bytes of its files, in order."""
        return [self.data] if self.weights is None else [self.data, self.weights]

    def sha256(self) -> str:
        """Return the SHA-256 of its files' concatenated bytes."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(part)
        return digest.hexdigest()


def export_paths(path: str | Path) -> list[Path]:
    """Return the files of an export, by the format that its suffix names."""
    path = Path(path)
    suffix = path.suffix.lower()
    return [path, path.with_suffix(_WEIGHTS[suffix])] if suffix in _WEIGHTS else [path]


def read_export_file(path: str | Path) -> ExportFile:
    """Return an export's bytes, of both files in a format of two; ExportError if one is missing or unreadable."""
    path, *beside = export_paths(path)
    if not is_file(path):
        raise ExportError(f"{shown(path)}: no such file")
    for other in beside:
        if not is_file(other):
            raise ExportError(f"{shown(path)}: its weights, {other.name}, are not beside it")
    return ExportFile(path, *(read_file(file, ExportError) for file in (path, *beside)))


def read_checked(path: str | Path, *, allow_edited: bool = False) -> ExportFile:
    """Return an export's bytes, which must be unmodified; ExportError as `read_export_file` and `check_seal`.

    Another program's file is an ExportError, whether or not it may be edited.
    """
    file = read_export_file(path)
    if allow_edited:
        _refuse_foreign(file)
    else:
        check_seal(file)
    return file


def _refuse_foreign(file: ExportFile) -> None:
    if what := foreign_file(file.data, file.suffix):
        raise ExportError(f"{file.name} {what}")


def is_as_written(file: ExportFile) -> bool:
    """Return whether an export's checksum matches."""
    parts = _parts(file)
    seals = seals_in(parts)
    return len(seals) == 1 and is_whole(parts, seals[0])


def check_seal(file: ExportFile) -> None:
    """Raise ExportError if an export has no checksum or does not match it."""
    if is_as_written(file):
        return
    if seals_in(_parts(file)):
        what = "is not as it was written: it is damaged, or was edited"
    else:
        _refuse_foreign(file)
        what = "has no checksum: an early Boxwright wrote it, or it is damaged"
    raise ExportError(f"{file.name} {what}; export it again, or {_TRUST}")


def _parts(file: ExportFile) -> list[bytes]:
    """Return the parts that the checksum covers."""
    return sealed_parts(unpacked_members(file.data, file.name)) if file.suffix == ".pt2" else file.parts
