"""Files in the format of `torch.save`, with a digest that is verified before they are read.

torch ignores the checksums of these zip archives, and so accepts corrupt weights. Ours store the SHA-256 of the rest of
the file in the archive's comment, which other readers ignore.
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
    """Write content like `torch.save`, with its digest as the archive's comment.

    Args:
        file: Empty, open for reading and writing.
    """
    torch.save(content, file)
    # An archive ends with its comment's length, for which torch writes 0.
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
    """Return the content of a file of tensors and plain data, without running code from it.

    The digest is verified, or the archive's own checksums if another program wrote it. (Files of torch before 1.6 have
    neither.)

    Raises:
        FileNotFoundError: If the file does not exist.
        CheckpointError: If it cannot be read, is damaged, or contains more than tensors and plain data.
    """
    try:
        with Path(path).open("rb") as file:
            _verify(file)
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except pickle.UnpicklingError:
        problem = "it holds more than tensors and plain data, which could run code, or is damaged"
    except Exception as error:  # noqa: BLE001  # torch.load raises a dozen kinds of exceptions for other files
        problem = first_line(error)
    raise CheckpointError(f"{shown(path)}: not a readable checkpoint: {problem}")


def _verify(file: BinaryIO) -> None:
    """Check a file's digest, or if it has none its archive's checksums.

    Raises:
        ValueError: If they do not match, or a member is compressed: torch compresses nothing, but a zip bomb is
            compressed.
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
                raise ValueError(f"{packed[:60]!r} in it is compressed, which torch never does")
            if damaged := archive.testzip():
                raise ValueError(f"damaged: the checksum of {damaged[:60]!r} in it does not hold")
