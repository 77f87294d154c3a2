"""The files that `torch.save` writes: sealed with a digest when written, proved whole before they are read.

torch reads such a file, a zip archive, without looking at its checksums, and so takes rotten weights
for good ones. Ours carry the SHA-256 of everything else in them as the archive's comment, which
other readers pass over.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from boxwright.base.errors import CheckpointError, first_line
from boxwright.base.files import shown

_SEAL = b"boxwright sha256 "
_SEAL_SIZE = len(_SEAL) + 64
_CHUNK = 1 << 20


def save_archive(content: dict[str, Any], file: BinaryIO) -> None:
    """Write content as `torch.save` does, with its digest as the archive's comment.

    Args:
        file: Empty, open for reading and writing.
    """
    torch.save(content, file)
    # The last record of an archive ends with its comment's length, 0 as torch writes it.
    file.seek(-2, os.SEEK_END)
    file.write(struct.pack("<H", _SEAL_SIZE))
    size = file.tell()
    digest = _digest(file, size)
    file.seek(size)
    file.write(_SEAL + digest)


def _digest(file: BinaryIO, size: int) -> bytes:
    """Return the SHA-256 of a file's first bytes."""
    found = hashlib.sha256()
    file.seek(0)
    for start in range(0, size, _CHUNK):
        found.update(file.read(min(_CHUNK, size - start)))
    return found.hexdigest().encode()


def load_archive(path: str | Path) -> Any:
    """Read a file of tensors and plain data; no code in it is run.

    Args:
        path: What `torch.save` wrote, with a digest or without.

    Returns:
        Its content, which the digest has proved whole, or the archive's own checksums where another program wrote
        it. (Files of torch before 1.6 have neither.)

    Raises:
        FileNotFoundError: Where there is none.
        CheckpointError: Where it cannot be read, is damaged, or holds more than tensors and plain data.
    """
    try:
        with Path(path).open("rb") as file:
            _prove_whole(file)
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except pickle.UnpicklingError:
        problem = (
            "it holds more than tensors and plain data, or is damaged; nothing else is read, as that could run code"
        )
    except Exception as error:  # noqa: BLE001  # torch.load raises a dozen kinds for files that are none of its own
        problem = first_line(error)
    raise CheckpointError(f"{shown(path)}: not a readable checkpoint: {problem}")


def _prove_whole(file: BinaryIO) -> None:
    """Check a file's digest, or where it has none its archive's checksums.

    Raises:
        ValueError: Where they do not hold, or a part is packed: torch packs nothing, but a bomb is.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - _SEAL_SIZE, 0))
    seal = file.read()
    if seal.startswith(_SEAL):
        if _digest(file, size - _SEAL_SIZE) != seal[len(_SEAL) :]:
            raise ValueError("damaged: its digest does not hold")
        return
    file.seek(0)
    if file.read(4) == b"PK\x03\x04":
        with zipfile.ZipFile(file) as archive:
            packed = next((m.filename for m in archive.infolist() if m.compress_type != zipfile.ZIP_STORED), "")
            if packed:
                raise ValueError(f"{packed[:60]!r} in it is packed, as torch packs nothing")
            if damaged := archive.testzip():
                raise ValueError(f"damaged: the checksum of {damaged[:60]!r} in it does not hold")
