"""The known name that a misspelled one is told."""

from __future__ import annotations

import pytest

from boxwright.base.nearest import did_you_mean, nearest_name

KNOWN = ("num_classes", "num_steps", "Batch_Size", "IDENTITY")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("numclasses", "num_classes"),
        ("NUM_STEP", "num_steps"),  # in any case
        ("batch_size", "Batch_Size"),  # spelled as it is known
        ("identty", "IDENTITY"),
        ("xyzzy", None),
        ("", None),
        ("num_classes" * 100_000, None),  # in no time
    ],
)
def test_the_nearest_name(name: str, near: str | None) -> None:
    assert nearest_name(name, KNOWN) == near


def test_nothing_is_near_nothing() -> None:
    assert nearest_name("num_classes", ()) is None
    assert did_you_mean("num_classes", ()) == ""


def test_the_end_of_an_error() -> None:
    assert did_you_mean("numclasses", KNOWN, "see the list") == "; did you mean num_classes?"
    assert did_you_mean("xyzzy", KNOWN, "see the list") == "; see the list"
