"""Class names that may be one name, misspelled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

# Of cat and car both may be classes; of raccoon and racoon hardly.
_SHORT = 3
_RARE = 1 / 5


def near_equal_names(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs of class names that may mean one class, the rarer name first.

    They differ in case, blanks, dashes and underscores alone; or in one letter, and one of them is rare.

    Args:
        counts: The number of objects of each class name.
    """
    spelled, nearby = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name in counts:
        plain = _plain(name)
        spelled[plain].append(name)
        # Names that differ in one letter are the same without it.
        for key in dict.fromkeys((plain, *_without_a_letter(plain))):
            nearby[key].append(name)
    pairs = dict.fromkeys(_pairs(spelled.values(), counts))
    for rare, often in _pairs(nearby.values(), counts):
        if counts[rare] <= _RARE * counts[often] and _one_letter_apart(_plain(rare), _plain(often)):
            pairs[rare, often] = None
    return sorted(pairs)


def _pairs(groups: Iterable[list[str]], counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the pairs in each group, the rarer name first."""
    for names in groups:
        yield from combinations(sorted(names, key=lambda name: (counts[name], name)), 2)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if not letter.isspace() and letter not in "-_")


def _without_a_letter(name: str) -> Iterator[str]:
    for place in range(len(name)):
        yield name[:place] + name[place + 1 :]


def _one_letter_apart(first: str, second: str) -> bool:
    """Return whether one letter was added, left out or replaced; numbers, as in type1 and type2, are no letters."""
    short, long = sorted((first, second), key=len)
    if len(long) <= _SHORT or len(long) - len(short) > 1 or short == long:
        return False
    start = next((place for place, pair in enumerate(zip(short, long, strict=False)) if pair[0] != pair[1]), len(short))
    rest = short[start + 1 :] if len(short) == len(long) else short[start:]
    return long[start + 1 :] == rest and not any(letter.isdigit() for letter in (short[start : start + 1], long[start]))
