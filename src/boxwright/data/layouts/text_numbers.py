"""Numbers in text files of annotations."""

from __future__ import annotations

from collections.abc import Iterable

from boxwright.base.errors import DataError
from boxwright.data.reading import finite_number


def parse_numbers(words: Iterable[str], where: str) -> list[float]:
    """Return the finite numbers that words spell; raise DataError if any spells none."""
    return [parse_number(word, where) for word in words]


def parse_number(word: str, where: str) -> float:
    """Return the finite number that a word spells; raise DataError if it spells none."""
    try:
        number = float(word)
    except ValueError:
        raise DataError(f"{where}: expected a number, found {word[:60]!r}") from None
    return finite_number(number, where)


def is_number(word: str) -> bool:
    """Return whether a word spells a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True
