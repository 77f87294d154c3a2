"""Reading JSON, and checking the types of what it holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import read_file, shown
from boxwright.data.reading import finite_number


def read_json(path: Path) -> Any:
    """Return what a JSON file holds, in UTF-8, -16 or -32, with or without a byte order mark.

    Raises:
        DataError: If it cannot be read, or is not JSON.
    """
    return parse_json(read_file(path), shown(path))


def parse_json(text: bytes | str, where: str) -> Any:
    """Return what JSON holds; raise DataError if it is not JSON."""
    try:
        return json.loads(text)
    # ValueError: not JSON, not in its encoding, or an integer of thousands of digits.
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {str(error)[:200]}") from None


def as_object(value: Any, where: str) -> dict[str, Any]:
    """Return a value that is an object; raise DataError if it is not."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected an object, found {repr(value)[:60]}")
    return value


def as_list(value: Any, where: str) -> list[Any]:
    """Return a value that is a list; raise DataError if it is not."""
    if not isinstance(value, list):
        raise DataError(f"{where}: expected a list, found {repr(value)[:60]}")
    return value


def as_text(value: Any, where: str) -> str:
    """Return a value that is text; raise DataError if it is not, or is empty."""
    if not isinstance(value, str) or not value:
        raise DataError(f"{where}: expected text, found {repr(value)[:60]}")
    return value


def numbers_of(row: dict[str, Any], keys: Sequence[str], where: str) -> list[float]:
    """Return the finite numbers under some keys of an object; raise DataError if any is none."""
    return [finite_number(row.get(key), f"{where}: {key}") for key in keys]


def flat_points(value: Any, where: str, least: int = 3) -> list[float]:
    """Return x, y, x, y and so on from a list of pairs.

    Raises:
        DataError: If it has fewer than `least` pairs, or something else than pairs of finite numbers.
    """
    pairs = as_list(value, where)
    if len(pairs) < least or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise DataError(f"{where}: expected [[x, y], …] of {least} points or more, found {repr(value)[:60]}")
    return [finite_number(number, where) for pair in pairs for number in pair]
