"""TensorFlow's checksums: CRC-32C, masked so that data which holds checksums can be checked itself."""

from __future__ import annotations

import google_crc32c


def mask_crc(crc: int) -> int:
    """Rotate and shift a checksum."""
    return ((((crc >> 15) | (crc << 17)) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """Compute the checksum of bytes as TensorFlow writes it."""
    return mask_crc(int(google_crc32c.value(data)))
