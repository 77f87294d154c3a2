"""TensorFlow's checksums: CRC-32C, masked so that data which holds checksums can be checked itself."""

from __future__ import annotations

import google_crc32c

__all__ = ["mask_crc", "masked_crc"]


def mask_crc(crc: int) -> int:
    """Rotate and shift a checksum.

    Args:
        crc: A CRC-32C.

    Returns:
        What TensorFlow writes.
    """
    return ((((crc >> 15) | (crc << 17)) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """Compute the checksum of bytes as TensorFlow writes it.

    Args:
        data: The bytes.

    Returns:
        The masked CRC-32C.
    """
    return mask_crc(int(google_crc32c.value(data)))
