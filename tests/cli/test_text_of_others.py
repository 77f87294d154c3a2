"""Texts of others in what commands print and write: names of classes and files, messages of errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.table import Table

from boxwright.cli.console import TextConsole
from boxwright.data.reading import read_table
from boxwright.inference.predict import ResultFiles
from boxwright.inference.sources import Frame
from boxwright.types import Categories, Category, Detections

# A terminal's title, another color, a script, a formula, a line of its own, the end of a text in C, another direction.
NAMES = [
    "\x1b]0;title\x07",
    "\x9b31mred",
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "a\nb",
    "a\0b",
    "\u202egnp.a",
]
UNSEEN = set("\x1b\x07\x9b\0\u202e")


def printed(*objects: Any, **options: Any) -> str:
    file = io.StringIO()
    console = TextConsole(file=file, highlight=False, soft_wrap=True, emoji=False, width=200)
    console.print(*objects, markup=False, **options)
    return file.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_a_terminal_gets_no_control_characters(name: str) -> None:
    """In lines and in tables, of the output and of errors, which have a style."""
    table = Table("name")
    table.add_row(name)
    for text in (printed(name), printed(table), printed(f"error: {name}", style="red")):
        assert not UNSEEN & set(text), repr(text)
    assert printed("浣熊 naïve").strip() == "浣熊 naïve"


def test_texts_in_result_files_are_read_as_they_were(tmp_path: Path) -> None:
    """JSON escapes them; a spreadsheet runs none of them, and our reader takes the quote off."""
    count = len(NAMES)
    categories = Categories(tuple(Category(label, label + 1, name) for label, name in enumerate(NAMES)))
    boxes = np.tile(np.array([[1, 2, 3, 4]], np.float32), (count, 1))
    labels, scores = np.arange(count), np.full(count, 0.5, np.float32)
    found = Detections(boxes, scores, labels, (9, 9), categories)
    files = ResultFiles(tmp_path, ["detections.json", "coco.json", "detections.csv"])
    files.add(Frame(np.zeros((9, 9, 3), np.uint8), "-photo.jpg"), found)
    files.close()
    for name in ("detections.json", "coco.json"):
        text = (tmp_path / name).read_text("utf-8")
        assert not UNSEEN & set(text)
        json.loads(text)
    with (tmp_path / "detections.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows if row["class"][0] in "=+-@\t\r"] == []
    assert {row["file"] for row in rows} == {"'-photo.jpg"}
    assert [float(row["x_min"]) for row in rows] == [1.0] * count
    assert rows[3]["class"] == f"'{NAMES[3]}"


def test_our_reader_takes_the_quote_off(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("file,x\n'-photo.jpg,-1\n'quoted',2\n", encoding="utf-8")
    rows = [row for _, row in read_table(tmp_path / "a.csv", ["file"])]
    assert rows == [{"file": "-photo.jpg", "x": "-1"}, {"file": "'quoted'", "x": "2"}]
