"""Texts of others, such as names of classes and files, and addresses: what is taken out before they leave.

Terminals and logs get no control characters, spreadsheets no formulas, and what is written or printed of an address has
neither user information nor a query, where passwords and tokens stand.
"""

from __future__ import annotations

import re

# Control characters but tab and line feed; marks that turn the direction of text; separators that end a line for some
# readers; and lone surrogates, by which Python holds names of files that are not UTF-8.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]"
)
_ADDRESS = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]+)://(\S+)")
# Up to the last @ before the path; also after a slash in a password that was not encoded, where no port can be.
_USER = re.compile(r"^(?:[^/@]*:[^/@]*[^/@0-9:][^/@]*/.*@|[^/]*@)")
# Not what follows an address in a sentence, nor the numbers of a set of files: a-?????-of-00010.
_QUERY = re.compile(r"\?(?!\?*-of-)[^#]*?(?=#|[)\]>,.:;'\"]*$)")
_MOST_DIGITS = 18  # which fit in int64
# Spreadsheets run a cell that begins like this; Excel drops a quote before it.
_FORMULA = re.compile("'*[=+\\-@\t\r]")


def visible(text: str) -> str:
    r"""Return a text with control characters and marks of direction as \uXXXX, which JSON reads, too.

    Unchanged, they could set a terminal's title, clear its screen, or show another order than the text has.
    """
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def visible_line(text: str) -> str:
    r"""Return a text as `visible` does, and in one line: with the ends of lines as \u000a, too."""
    return visible(text).replace("\n", "\\u000a")


def without_secrets(text: str) -> str:
    """Return a text whose addresses have no user information and no query; other text is unchanged.

    `rtsp://user:password@HOST/a?token=1` becomes `rtsp://HOST/a`: it names the place without giving access to it.
    """
    return _ADDRESS.sub(lambda match: f"{match[1]}://{_QUERY.sub('', _USER.sub('', match[2]))}", text)


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number with what it counts: "1 image", "2 boxes"; `several` is `one` with an s unless it is given."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def to_cell(text: str) -> str:
    """Return a text for a cell of a CSV file: with a quote before what a spreadsheet would run as a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def from_cell(text: str) -> str:
    """Return the text that `to_cell` wrote."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def to_number(text: str) -> float:
    """Return the number that a text spells in digits of ASCII; ValueError for 1_0 and other scripts, unlike `float`."""
    if "_" in text or not text.isascii():
        raise ValueError(f"expected a number, found {text[:60]!r}")
    return float(text)


def is_count(text: str) -> bool:
    """Return whether a text spells a count in at most 18 digits of ASCII; `str.isdigit` takes what `int` refuses."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
