"""Reading and writing a .pt2's zip archive without PyTorch.

Two zip readers may see different contents in one file; so this module alone reads files, and PyTorch gets an archive
rewritten from what was read.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping

from boxwright.base.errors import ExportError
from boxwright.base.limits import ARCHIVE_FILES, CHECKPOINT_BYTES
from boxwright.runtime.metadata import KEY

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
