from __future__ import annotations

import tracemalloc
from typing import Any

import httpx
import numpy as np
import pytest
import requests

from boxwright.inference.serving.pictures import file_of_form, flat_numbers, nested_shape, parse_bytes, picture_of_list
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


GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("kind", ["int", "float", "mixed"])
def test_pictures_of_lists(channels: int, kind: str) -> None:
    array = GENERATOR.integers(0, 256, (5, 7, channels), np.uint8)
    values = array.astype(float).tolist() if kind == "float" else array.tolist()
    if kind == "mixed":
        values[2][3][0] = float(values[2][3][0])
    found = picture_of_list(values, "it")
    wanted = np.repeat(array, 3, axis=2) if channels == 1 else array[..., :3]
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([[[True, 1, 2]]], "expected numbers"),
        ([[[None, 1, 2]]], "expected numbers"),
        ([[["1", 1, 2]]], "expected numbers"),
        ([[[{}, 1, 2]]], "expected numbers"),
        ([[[1, 2, 3], 4]], "different lengths"),
        ([[[1, 2, 3]], 4], "different lengths"),
        ([[[1, 2, 3]], [[1, 2]]], "different lengths"),
        ([[[[1]]]], "at most 3 levels"),
        ([[[float("nan"), 1, 2]]], "0 to 255"),
        ([[[1e300, 1, 2]]], "0 to 255"),
        ([[[2**62, 1, 2]]], "0 to 255"),
        ([[[0.5, 1, 2]]], "integers"),
        ([[[1, 2]]], r"expected \[height, width, 3\]"),
        ([[[]]], r"expected \[height, width, 3\]"),
        ([], r"expected \[height, width, 3\]"),
        ([[], []], r"expected \[height, width, 3\]"),
        (3, r"expected \[height, width, 3\]"),
        ("text", "expected numbers"),
    ],
)
def test_what_is_no_picture(values: Any, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason) as refused:
        picture_of_list(values, "it")
    assert refused.value.status == 400


@pytest.mark.parametrize("values", [["a" * 10_000, *[""] * 20_000], [[[0] * 10_000], *[[]] * 20_000]])
def test_memory_is_in_proportion(values: Any) -> None:
    """An array of these would have 10,000 times as many bytes as they."""
    tracemalloc.start()
    with pytest.raises(BadRequest):
        flat_numbers(values, 4, "it")
    with pytest.raises(BadRequest):
        picture_of_list([values], "it")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2_000_000


def test_an_outline_does_not_go_deeper_than_a_picture() -> None:
    deep: Any = 1
    for _ in range(1000):
        deep = [deep]
    assert len(nested_shape(deep)) <= 5
    assert nested_shape([[[1, 2, 3]], 7]) == (2, 1, 3)


def test_nothing_is_no_number() -> None:
    assert flat_numbers([[1, 2], [3, 4]], 4, "it") == ((2, 2), [1, 2, 3, 4])
    assert parse_bytes([0, 255], "it").tolist() == [0, 255]
