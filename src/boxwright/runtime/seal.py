"""Checksums within what they are of: the SHA-256 of an export stands in its metadata, over zeros that were hashed.

The place has a length of its own, so that writing the checksum moves nothing in any format.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

_MARK = "boxwright-sha256:"
# What metadata say until the rest of the file is known.
UNSEALED = _MARK + 64 * "0"
_SEAL = re.compile(rb"boxwright-sha256:[0-9a-f]{64}")


def seal(parts: Sequence[bytes]) -> list[bytes]:
    """Return the parts of an export with their SHA-256 in place of `UNSEALED`.

    Args:
        parts: In which `UNSEALED` stands once.

    Raises:
        ValueError: Where it does not stand in them, or more than once.
    """
    place = UNSEALED.encode()
    count = sum(part.count(place) for part in parts)
    if count != 1:
        raise ValueError(f"expected one place for a checksum, found {count}")
    sealed = f"{_MARK}{digest_of(parts)}".encode()
    return [part.replace(place, sealed) for part in parts]


def seals_in(parts: Sequence[bytes]) -> list[bytes]:
    """Return all checksums that stand in an export's parts: one, unless it was edited or damaged."""
    return [mark for part in parts for mark in _SEAL.findall(part)]


def is_whole(parts: Sequence[bytes], found: bytes) -> bool:
    """Tell whether a checksum that stands in parts is of them."""
    blank = [part.replace(found, UNSEALED.encode()) for part in parts]
    return found == f"{_MARK}{digest_of(blank)}".encode()


def digest_of(parts: Sequence[bytes]) -> str:
    """Return the SHA-256 of parts and their lengths, as hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
