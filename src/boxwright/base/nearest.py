"""The known name nearest to a misspelled one, for errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Comparing takes time that grows with the length, and no name is longer.
_LONGEST = 80


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is spelled most like a name; None if none is similar."""
    names = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name[:_LONGEST].lower(), names, n=1)
    return names[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of an error about an unknown name: "; did you mean X?", or another remedy if none is similar.

    Args:
        otherwise: The remedy if no known name is similar, without its semicolon.
    """
    near = nearest_name(name, known)
    if near is not None:
        return f"; did you mean {near}?"
    return f"; {otherwise}" if otherwise else ""
