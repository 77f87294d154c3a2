"""What is told of an error."""

from __future__ import annotations

import pytest

from boxwright.base.errors import DataError, first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("\n  padded \nmore"), "padded "),
        (ValueError(""), "ValueError"),
        (MemoryError(), "MemoryError"),
        (DataError("a.record: damaged"), "a.record: damaged"),
    ],
)
def test_the_first_line_of_an_error(error: Exception, line: str) -> None:
    assert first_line(error) == line


def test_an_error_about_data_is_one_line_whatever_a_file_says() -> None:
    """A key of a file with a line feed would begin a line of its own, which may look like another message."""
    assert str(DataError("keys are a\nerror: b, c\x1b[2J")) == r"keys are a\u000aerror: b, c\u001b[2J"


def test_a_line_without_end_is_shortened() -> None:
    line = first_line(RuntimeError("a" * 10_000 + "z"))
    assert len(line) <= 501
    assert line.startswith("aaa")
    assert line.endswith("z")
