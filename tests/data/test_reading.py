"""XML in the encodings that tools write, declared or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxwright.base.errors import DataError
from boxwright.data.reading import ReasonCounts, read_xml

TEXT = "<a>Prüfung €</a>"
CP1252 = "XML files that are not in their encoding, read as Windows-1252"
UTF8 = "XML files that declare another encoding, read as UTF-8"


def declared(encoding: str) -> str:
    return f'<?xml version="1.0" encoding="{encoding}"?>'


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (TEXT.encode(), []),
        (TEXT.encode("utf-8-sig"), []),
        ((declared("utf-8") + TEXT).encode("utf-8-sig"), []),
        (TEXT.encode("utf-16"), []),
        ((declared("utf-16") + TEXT).encode("utf-16"), []),
        ((declared("windows-1252") + TEXT).encode("cp1252"), []),
        ((declared("iso-8859-15") + TEXT).encode("iso-8859-15"), []),
        # Without a declaration, or with a wrong one.
        (TEXT.encode("cp1252"), [CP1252]),
        ((declared("utf-8") + "\r\n" + TEXT).encode("cp1252"), [CP1252]),
        (('<?xml version="1.0"?>' + TEXT).encode("cp1252"), [CP1252]),
        ((declared("utf-16") + TEXT).encode(), [UTF8]),
    ],
)
def test_encodings(tmp_path: Path, data: bytes, wanted: list[str]) -> None:
    (tmp_path / "a.xml").write_bytes(data)
    assumed = ReasonCounts()
    assert read_xml(tmp_path / "a.xml", assumed).text == "Prüfung €"
    assert list(assumed.lines()) == [f"{reason}: 1 (a.xml)" for reason in wanted]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<a>",
        b"<a>R&D</a>",
        b"<a>\xff",
        b"<a>\x81</a>",
        (declared("nonsense") + "<a/>").encode(),
        (declared("rot13") + "<a/>").encode(),
        b"<a>" * 50_000,
        b"\xff\xfe<",
    ],
)
def test_what_is_not_xml(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.xml").write_bytes(data)
    assumed = ReasonCounts()
    with pytest.raises(DataError, match="a.xml: not XML: "):
        read_xml(tmp_path / "a.xml", assumed)
    assert not assumed.counts
