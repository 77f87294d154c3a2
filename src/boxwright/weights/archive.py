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
from collections.abc import Callable
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
    digest = hashlib.sha256()
    file.seek(0)
    for start in range(0, size, _CHUNK):
        digest.update(file.read(min(_CHUNK, size - start)))
    return digest.hexdigest().encode()


def load_archive(path: str | Path) -> Any:
    """Return the content of a file of tensors and plain data, without running code from it.

    The digest is verified, or the archive's own checksums if another program wrote it. (Files of torch before 1.6 have
    neither.)

    Raises:
        FileNotFoundError: If the file does not exist.
        CheckpointError: If it cannot be read, is damaged, or contains more than tensors and plain data.
    """
    return _load(path, _verify)


def load_sealed_archive(path: str | Path) -> Any:
    """Return the content of a file that `save_archive` wrote; one without a digest is damaged.

    The archive's own checksums would not notice tensors that were exchanged in its table.

    Raises:
        FileNotFoundError: If the file does not exist.
        CheckpointError: As for `load_archive`.
    """
    return _load(path, _verify_seal)


def _load(path: str | Path, verify: Callable[[BinaryIO], object]) -> Any:
    try:
        with Path(path).open("rb") as file:
            verify(file)
            file.seek(0)
            # weights_only: the unpickler builds tensors and plain data, and imports nothing.
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except pickle.UnpicklingError:
        problem = "it holds more than tensors and plain data, which could run code, or is damaged"
    except Exception as error:  # noqa: BLE001  # torch.load raises a dozen kinds of exceptions for other files
        problem = first_line(error)
    raise CheckpointError(f"{shown(path)}: not a readable checkpoint: {problem}")


def _verify_seal(file: BinaryIO) -> None:
    """Check a file's digest; a ValueError if it has none."""
    if not _has_seal(file):
        raise ValueError("damaged, or written by another program: it has no digest")


def _has_seal(file: BinaryIO) -> bool:
    """Return whether a file has a digest, after checking it; a ValueError if it does not hold."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - _SEAL_SIZE, 0))
    seal = file.read()
    if not seal.startswith(_SEAL):
        return False
    if _digest(file, size - _SEAL_SIZE) != seal[len(_SEAL) :]:
        raise ValueError("damaged: its digest does not hold")
    return True


def _verify(file: BinaryIO) -> None:
    """Check a file's digest, or if it has none its archive's checksums.

    Raises:
        ValueError: If they do not match, or a member is compressed: torch compresses nothing, but a zip bomb is
            compressed.
    """
    if _has_seal(file):
        return
    file.seek(0)
    if file.read(4) == b"PK\x03\x04":
        with zipfile.ZipFile(file) as archive:
            packed = next((m.filename for m in archive.infolist() if m.compress_type != zipfile.ZIP_STORED), "")
            if packed:
                raise ValueError(f"{packed[:60]!r} in it is compressed, which torch never does")
            if damaged := archive.testzip():
                raise ValueError(f"damaged: the checksum of {damaged[:60]!r} in it does not hold")
