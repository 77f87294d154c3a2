"""Reading XML in any encoding, and what XML cannot hold."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from boxwright.base.errors import DataError
from boxwright.base.files import read_file, shown
from boxwright.data.notices import ReasonCounts

_ENCODING = re.compile(rb"<\?xml[^>]*?\bencoding\s*=\s*[\"']([A-Za-z0-9._-]+)[\"']")
_DECLARATION = re.compile(r"^\ufeff?<\?xml[^>]*\?>")
# Characters outside XML 1.0, and the carriage return, which XML readers turn into a line feed.
NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def read_xml(path: Path, assumed: ReasonCounts | None = None) -> ET.Element:
    """Return the root of a file.

    Args:
        assumed: Counts the files that are not in the encoding that they declare.

    Raises:
        DataError: If it cannot be read, or is not XML.
    """
    data = read_file(path)
    try:
        return ET.fromstring(data)
    except (ET.ParseError, ValueError, LookupError, RecursionError) as error:
        for text, assumption in _other_readings(data):
            try:
                # The declaration is removed, since it would still name the old encoding.
                root = ET.fromstring(_DECLARATION.sub("", text, count=1).encode())
            except (ET.ParseError, ValueError, RecursionError):
                continue
            if assumption and assumed is not None:
                assumed.add(assumption, path.name)
            return root
        raise DataError(f"{shown(path)}: not XML: {error}") from None


def _other_readings(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the text of a file that the parser refuses, as other programs write it, and what that assumes."""
    declared = _ENCODING.match(data)
    encoding = declared[1].decode() if declared else "utf-8"
    try:
        # Encodings that only Python supports, such as gb2312.
        yield data.decode(encoding), ""
    except LookupError:
        return
    except ValueError:
        pass
    try:
        yield data.decode("utf-8-sig"), "XML files that declare another encoding, read as UTF-8"
    except UnicodeDecodeError:
        with suppress(UnicodeDecodeError):
            yield data.decode("cp1252"), "XML files that are not in their encoding, read as Windows-1252"
