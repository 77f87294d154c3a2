"""Lists of JSON, read item by item."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from boxwright.base.errors import DataError
from boxwright.report import tables
from boxwright.report.tables import read_json_list

ROWS = [{"a": [1, 2.5e-3, None], "b": {"c": "},]"}}, {}, {"浣熊": '\\"ü', "n": 12345}, {"long": "x" * 200}]


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
@pytest.mark.parametrize("indent", [None, 1])
def test_it_reads_what_was_written(
    chunk: int, indent: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a piece ends: within a number, an escape, a character of several bytes."""
    monkeypatch.setattr(tables, "_CHUNK", chunk)
    for rows in ([], ROWS[:1], ROWS):
        (tmp_path / "a.json").write_text(f" {json.dumps(rows, indent=indent, ensure_ascii=False)}\n", "utf-8")
        assert list(read_json_list(tmp_path / "a.json")) == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected \\[, character 0: the end"),
        (b"{}", "expected \\[, character 0: '{}'"),
        (b"[", "expected an object, character 1: the end"),
        (b"[1]", "expected an object, character 1: '1]'"),
        (b'[{"a": 1}, [2]]', "expected an object, character 11: "),
        (b'[{"a": 1}', "expected , or ], character 9: the end"),
        (b'[{"a": 1} {}]', "expected , or ]"),
        (b'[{"a": 1},]', "expected an object"),
        (b'[{"a": }]', "Expecting value, character 1"),
        (b'[{"a": 1', "Expecting ',' delimiter"),
        (b"[{}] {}", "expected nothing after the list, character 5"),
        (b'[{"a": "\xff"}]', "not JSON: 'utf-8' codec"),
        (b'[{"a": ' + b"[" * 100_000, "recursion"),
    ],
)
def test_what_is_no_list_of_objects(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.json: .*{message}"):
        list(read_json_list(tmp_path / "a.json"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for name in ("missing.json", "a\0b"):
        with pytest.raises(DataError, match="No such file|null byte"):
            list(read_json_list(tmp_path / name))
