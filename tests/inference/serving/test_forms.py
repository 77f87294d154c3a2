from __future__ import annotations

import httpx
import pytest
import requests

from boxwright.inference.serving.pictures import file_of_form
from boxwright.inference.serving.requests import BadRequest

KIND = "multipart/form-data; boundary=x"


def form(*parts: str, end: str = "--x--\r\n") -> bytes:
    return ("".join(f"--x\r\n{part}\r\n" for part in parts) + end).encode("latin-1")


FILE = 'Content-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\nab\r\n--y\r\nc'
FIELD = 'Content-Disposition: form-data; name="note"\r\n\r\nhello'


def test_the_file_among_fields() -> None:
    assert file_of_form(form(FIELD, FILE, FIELD), KIND) == b"ab\r\n--y\r\nc"
    assert file_of_form(form(FILE), 'Multipart/Form-Data; charset=x; BOUNDARY="x"') == b"ab\r\n--y\r\nc"


def test_forms_that_clients_make() -> None:
    data = bytes(range(256)) * 30
    sent = httpx.Request("POST", "http://a", files={"image": ("ä.png", data)}, data={"note": "x"})
    assert file_of_form(sent.read(), sent.headers["content-type"]) == data
    prepared = requests.Request("POST", "http://a", files={"image": ("a.png", data)}).prepare()
    assert isinstance(prepared.body, bytes)
    assert file_of_form(prepared.body, prepared.headers["Content-Type"]) == data


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        (form(FILE), "multipart/form-data", "has no boundary"),
        (b"", KIND, "does not begin with its boundary"),
        (b"junk" + form(FILE), KIND, "does not begin with its boundary"),
        (form(FILE, end=""), KIND, "followed by a line break|truncated"),
        (form(FILE)[:-20], KIND, "truncated"),
        (form(FIELD), KIND, "one file, found 0"),
        (form(FILE, FILE), KIND, "one file, found 2"),
        (form("no headers"), KIND, "no headers"),
        (form("A: " + "x" * 9000 + "\r\n\r\nbody"), KIND, "over 8192 bytes"),
        (form(*[FIELD] * 101), KIND, "more than 100 parts"),
        (form("Content-Transfer-Encoding: base64\r\n" + FILE), KIND, "must be sent unencoded"),
    ],
)
def test_what_is_no_form(body: bytes, kind: str, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason) as refused:
        file_of_form(body, kind)
    assert refused.value.status == 400


def test_a_part_is_not_looked_into() -> None:
    inner = (
        "Content-Type: multipart/mixed; boundary=y\r\n\r\n--y\r\nContent-Disposition: a; filename=b\r\n\r\nc\r\n--y--"
    )
    with pytest.raises(BadRequest, match="found 0"):
        file_of_form(form(inner), KIND)
