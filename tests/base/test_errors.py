"""What is told of an error."""

from __future__ import annotations

import re

import pytest

from boxwright.base.errors import CheckpointError, DataError, describe_shortage, first_line, pass_shortage, translated


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


CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "76800 bytes. Error code 12 (Cannot allocate memory)"
)
GPU = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139 GiB"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError(CPU), "not enough memory (76800 bytes at once)"),
        (RuntimeError(GPU), "not enough memory (2.50 GiB at once)"),
        (MemoryError(), "not enough memory"),
        (ValueError("Insufficient memory (case 10)"), "not enough memory"),
    ],
)
def test_a_shortage_is_no_damage_and_is_told_without_a_librarys_words(error: Exception, said: str) -> None:
    assert describe_shortage(error) == said
    with pytest.raises(MemoryError, match=f"^a.pt: {re.escape(said)}$"):
        pass_shortage(error, "a.pt")
    with pytest.raises(MemoryError, match=f"^a.pt: {re.escape(said)}$|^$"), translated(CheckpointError, "a.pt"):
        raise error


def test_other_errors_are_no_shortage() -> None:
    pass_shortage(ValueError("damaged"), "a.pt")
