"""Marking those cases of a parametrized test slow whose lines a faster case covers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def slow_but(keep: Callable[[T], bool], cases: Iterable[T], name: Callable[[T], str] | None = None) -> list[Any]:
    """Return the cases, of which those that are not kept run in `make test-all` alone; `name` gives their ids."""
    return [
        pytest.param(case, marks=() if keep(case) else (pytest.mark.slow,), id=name(case) if name is not None else None)
        for case in cases
    ]
