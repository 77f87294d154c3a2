"""Findings of checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# "fatal": the run cannot succeed; "warning": its results will probably be poor; "note": worth knowing.
Verdict = Literal["fine", "note", "warning", "fatal"]
_SHOWN = 4


@dataclass(frozen=True)
class Finding:
    """A check's result.

    Attributes:
        remedy: What to do; empty if nothing needs to be done.
    """

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.check}: {self.found}" + (f"; {self.remedy}" if self.remedy else "")


def some(items: Sequence[str]) -> str:
    """Return the first items in one line, and how many more there are."""
    more = len(items) - _SHOWN
    return ", ".join(items[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
