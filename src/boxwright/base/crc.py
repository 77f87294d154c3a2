"""TensorFlow's checksums: CRC-32C, masked so that data that contains checksums can itself be checked."""

from __future__ import annotations

import google_crc32c


def mask_crc(crc: int) -> int:
    """Return a masked checksum."""
    return ((((crc >> 15) | (crc << 17)) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """Return the masked checksum of bytes."""
    return mask_crc(int(google_crc32c.value(data)))
