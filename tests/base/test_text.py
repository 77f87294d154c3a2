"""Texts of others: control characters, secrets in addresses, formulas."""

from __future__ import annotations

import json

import pytest

from boxwright.base.errors import DataError, is_shortage
from boxwright.base.files import shown
from boxwright.base.text import counted, from_cell, to_cell, visible, without_secrets


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("rtsp://user:p@ss@h/a?token=1: broke off", "rtsp://h/a: broke off"),
        ("http://u:p?a#b@h:80/x.png?x=1#3", "http://h:80/x.png#3"),
        ("rtsp://u:pa/ss@h/x", "rtsp://h/x"),
        ("two: http://u@h/a, https://h/b?sig=AB%2F.", "two: http://h/a, https://h/b."),
        ("hf://USER/NAME@main", "hf://USER/NAME@main"),
        ("http://h:80/@me/x.png", "http://h:80/@me/x.png"),
        ("http://[::1/x.png?a=1", "http://[::1/x.png"),
        ("s3://b/x.tar#m/a.jpg", "s3://b/x.tar#m/a.jpg"),
        ("s3://b/a-?????-of-00010.tar: gone", "s3://b/a-?????-of-00010.tar: gone"),
        ("what? a@b.c: no address", "what? a@b.c: no address"),
    ],
)
def test_addresses_without_secrets(text: str, wanted: str) -> None:
    assert without_secrets(text) == wanted
    assert str(DataError(text)) == wanted


def test_control_characters_are_shown() -> None:
    """A terminal's title, another direction, a forged line; also in JSON, whose readers get the name itself."""
    name = "a\x1b]0;x\x07\x9b2J\u202eb\r\u2028c\0\udc80"
    assert visible(name) == "a\\u001b]0;x\\u0007\\u009b2J\\u202eb\\u000d\\u2028c\\u0000\\udc80"
    assert visible("Größe 浣熊 \t a\n") == "Größe 浣熊 \t a\n"
    assert json.loads(visible(json.dumps([name], ensure_ascii=False))) == [name]
    assert shown("a\nerror: b") == "a\\nerror: b"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-a.jpg", "@x", "\tx", "\rx", "'=1", "''@x"])
def test_formulas_get_a_quote_that_readers_take_off(text: str) -> None:
    assert to_cell(text) == f"'{text}"
    assert from_cell(to_cell(text)) == text


@pytest.mark.parametrize("text", ["", "a=1", "'a", "'", "shots/a-1.jpg"])
def test_other_cells_stay(text: str) -> None:
    assert from_cell(to_cell(text)) == to_cell(text) == from_cell(text) == text


def test_errors_of_short_memory() -> None:
    short = [MemoryError(), ValueError("Insufficient memory (case 4)"), OSError(12, "Cannot allocate memory")]
    assert all(map(is_shortage, short))
    assert not is_shortage(ValueError("truncated"))


@pytest.mark.parametrize(
    ("number", "words", "expected"),
    [
        (0, ("image",), "0 images"),
        (1, ("image",), "1 image"),
        (2, ("image",), "2 images"),
        (1, ("box", "boxes"), "1 box"),
        (3, ("box", "boxes"), "3 boxes"),
    ],
)
def test_counts(number: int, words: tuple[str, ...], expected: str) -> None:
    assert counted(number, *words) == expected
