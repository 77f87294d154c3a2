"""The metadata in an exported file: one JSON, under one key, in every format.

It has the SHA-256 of the export, computed with zeros in its place. The placeholder has the same length, so that writing
the checksum moves nothing in any format.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from boxwright.base.errors import DataError, ExportError
from boxwright.types.categories import Categories

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
    sealed = f"{_MARK}{compute_digest(parts)}".encode()
    return [part.replace(place, sealed) for part in parts]


def seals_in(parts: Sequence[bytes]) -> list[bytes]:
    """Return all checksums in an export's parts: exactly one, unless it was modified or damaged."""
    return [mark for part in parts for mark in _SEAL.findall(part)]


def is_whole(parts: Sequence[bytes], checksum: bytes) -> bool:
    """Return whether a checksum in parts matches them."""
    blank = [part.replace(checksum, UNSEALED.encode()) for part in parts]
    return checksum == f"{_MARK}{compute_digest(blank)}".encode()


def compute_digest(parts: Sequence[bytes]) -> str:
    """Return the SHA-256 of parts and their lengths, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        # Without lengths, bytes could move from the end of a part to the start of the next.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


KEY = "boxwright"
SCHEMA = 1
_COLORS = 3
_LARGEST_FIXED = 1 << 14


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What is known about an exported detector.

    Attributes:
        categories: The classes as `Categories.to_list` returns them; empty if unknown.
        step: How many steps it was trained for.
        metric: A metric's name and value, if one was computed.
        created: When, in UTC, ISO 8601.
        weights_sha256: Of the weights, by name and value.
        input: The input's name, dtype, channels and their order, range, resizer and scaling.
        precision: Such as "float32".
        calibration: The number and source of the images that reduced precision was calibrated on, and the layers that
            stay in float32 nevertheless; else empty.
        parity: The verdict of the comparison with the detector, and its report's SHA-256; empty before the comparison.
        checksum: Of the whole export, as `seal.seal` writes it; zeros before.
    """

    format: str
    boxwright: str
    config: str
    num_classes: int
    categories: list[dict[str, Any]]
    step: int
    created: str
    weights_sha256: str
    input: dict[str, Any]
    outputs: dict[str, str]
    suppression: dict[str, Any]
    versions: dict[str, str]
    metric: dict[str, float] = field(default_factory=dict)
    precision: str = "float32"
    calibration: dict[str, Any] = field(default_factory=dict)
    parity: dict[str, Any] = field(default_factory=dict)
    checksum: str = UNSEALED
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Return the JSON, in one line, with sorted keys."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)

    @property
    def image_channels(self) -> int:
        """How many channels the pictures have that the file takes; 3 in files of versions that knew no others."""
        channels = self.input.get("channels", _COLORS)
        return channels if isinstance(channels, int) and channels > 0 else _COLORS

    @property
    def white_level(self) -> float:
        """The value that is white in pictures that are not of 8 bits, as in the data of the training; 0 if unstated."""
        level = self.input.get("white_level", 0.0)
        return float(level) if isinstance(level, int | float) and level > 0 else 0.0

    @property
    def batch(self) -> int:
        """How many pictures the file takes at a time; 0 for any number."""
        return self._fixed("batch")

    @property
    def image_size(self) -> tuple[int, ...]:
        """The (height, width) of the pictures that the file takes; empty for any."""
        sides = (self._fixed("height"), self._fixed("width"))
        return sides if all(sides) else ()

    def _fixed(self, side: str) -> int:
        shape = self.input.get("fixed")
        value = shape.get(side) if isinstance(shape, dict) else None
        return value if isinstance(value, int) and 0 < value <= _LARGEST_FIXED else 0

    def classes(self) -> Categories | None:
        """Return the classes, if known."""
        return Categories.from_list(self.categories) if self.categories else None

    @classmethod
    def from_json(cls, text: str | None, where: str) -> Metadata:
        """Return the metadata that `to_json` wrote; ExportError if it is missing, damaged or of a newer schema."""
        if not text:
            raise ExportError(f"{where} has no metadata: it was not written by `boxwright export`")
        try:
            content = json.loads(text)
            schema = content.pop("schema")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise ExportError(f"{where}: its metadata is damaged") from None
        if schema != SCHEMA:
            raise ExportError(
                f"{where}: its metadata has schema {str(schema)[:20]}, expected {SCHEMA}: is it from a newer version?"
            )
        known = {item.name: item for item in fields(cls)}
        try:
            # Unknown fields are ignored: an additional one does not need a new schema.
            metadata = cls(**{name: value for name, value in content.items() if name in known})
            metadata.classes()
        except (TypeError, DataError, AttributeError) as error:
            raise ExportError(f"{where}: its metadata is damaged: {str(error)[:200]}") from None
        return metadata
