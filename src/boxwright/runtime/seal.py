"""Embedded checksums: an export's metadata has the export's SHA-256, computed with zeros in its place.

The placeholder has the same length, so that writing the checksum moves nothing in any format.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

_MARK = "boxwright-sha256:"
# The placeholder until the rest of the file is known.
UNSEALED = _MARK + 64 * "0"
_SEAL = re.compile(rb"boxwright-sha256:[0-9a-f]{64}")


def seal(parts: Sequence[bytes]) -> list[bytes]:
    """Return an export's parts with their SHA-256 in place of `UNSEALED`; ValueError unless it occurs once."""
    place = UNSEALED.encode()
    count = sum(part.count(place) for part in parts)
    if count != 1:
        raise ValueError(f"expected one place for a checksum, found {count}")
    sealed = f"{_MARK}{digest_of(parts)}".encode()
    return [part.replace(place, sealed) for part in parts]


def seals_in(parts: Sequence[bytes]) -> list[bytes]:
    """Return all checksums in an export's parts: exactly one, unless it was modified or damaged."""
    return [mark for part in parts for mark in _SEAL.findall(part)]


def is_whole(parts: Sequence[bytes], checksum: bytes) -> bool:
    """Return whether a checksum in parts matches them."""
    blank = [part.replace(checksum, UNSEALED.encode()) for part in parts]
    return checksum == f"{_MARK}{digest_of(blank)}".encode()


def digest_of(parts: Sequence[bytes]) -> str:
    """Return the SHA-256 of parts and their lengths, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        # Without lengths, bytes could move from the end of a part to the start of the next.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
