"""Reading XML in any encoding, and what XML cannot hold."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from boxwright.base.errors import DataError
from boxwright.base.files import read_file, shown

_ENCODING = re.compile(rb"<\?xml[^>]*?\bencoding\s*=\s*[\"']([A-Za-z0-9._-]+)[\"']")
# Characters outside XML 1.0, and the carriage return, which XML readers turn into a line feed.
NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def read_xml(path: Path) -> ET.Element:
    """Return the root of a file.

    Raises:
        DataError: If it cannot be read, or is not XML.
    """
    data = read_file(path)
    try:
        try:
            return ET.fromstring(data)
        except (ValueError, LookupError):  # an encoding that only Python supports, such as gb2312
            declared = _ENCODING.match(data)
            if declared is None:
                raise
            text = data.decode(declared[1].decode())
            # Without the declaration, which would still name the old encoding.
            return ET.fromstring(text[text.index("?>") + 2 :].encode())
    except (ET.ParseError, ValueError, LookupError, RecursionError) as error:
        raise DataError(f"{shown(path)}: not XML: {error}") from None
