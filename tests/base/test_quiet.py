from __future__ import annotations

import logging
import warnings

import pytest

from boxwright.base.quiet import quiet


def test_warnings_and_log_lines_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with quiet():
        warnings.warn("a library's", stacklevel=1)
        logging.getLogger("a library").warning("its log")
    assert capsys.readouterr() == ("", "")


def test_the_root_logger_gets_no_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """`logging.warning` adds one where there is none."""
    monkeypatch.setattr(logging.root, "handlers", [])
    with quiet():
        logging.warning("of a library")  # what is tested
    assert logging.root.handlers == []


def test_the_level_is_as_before_even_after_an_error() -> None:
    with pytest.raises(ValueError, match="x"), quiet():
        raise ValueError("x")
    assert logging.root.manager.disable == logging.NOTSET
