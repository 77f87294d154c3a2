"""Texts of others in what commands print and write: names of classes and files, messages of errors."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from boxwright.cli.commands import COMMANDS
from boxwright.cli.console import TextConsole, print_document
from boxwright.cli.main import app
from boxwright.data.image_io import encode_png
from boxwright.data.reading import read_table
from boxwright.data.shapes import ShapesDataset
from boxwright.inference.predict import ResultFiles
from boxwright.inference.sources import Frame
from boxwright.report.page import write_page
from boxwright.types import Categories, Category, Detections

# A terminal's title, another color, a script, a formula, a line of its own, the end of a text in C, another direction,
# and what Rich takes for styles and links.
NAMES = [
    "\x1b]0;title\x07",
    "\x9b31mred",
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "a\nb",
    "a\0b",
    "\u202egnp.a",
    "[/x][link=file:///etc/passwd]a[/link]",
]
UNSEEN = set("\x1b\x07\x9b\0\u202e")


def printed(*objects: Any, **options: Any) -> str:
    file = io.StringIO()
    TextConsole(file=file, width=200).print(*objects, **options)
    return file.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_a_terminal_gets_no_control_characters(name: str) -> None:
    """In lines and in tables, of the output and of errors, which have a style."""
    table = Table("text", "styled")
    table.add_row(name, Text(name, "green"))
    for text in (printed(name), printed(table), printed(f"error: {name}", style="red")):
        assert not UNSEEN & set(text), repr(text)
        assert ("[/x][link=" in text) is ("[/x][link=" in name)
    assert printed("浣熊 naïve").strip() == "浣熊 naïve"


@pytest.mark.parametrize(
    ("name", "row"), [("a\nb", r"a\u000ab"), ("a\r\nb", r"a\u000d\u000ab"), ("a\n\n", r"a\u000a\u000a")]
)
def test_a_row_of_a_table_stays_a_line(name: str, row: str) -> None:
    """A name with an end of a line would look like another row; what has lines of its own is a `Text`."""
    table = Table("class", "boxes", show_header=False, box=None)
    table.add_row(name, "3")
    table.add_row(Text("one\ntwo"), "4")
    first, *others = printed(table).splitlines()
    assert first.split() == [row, "3"]
    assert [line.split() for line in others] == [["one", "4"], ["two"]]


def test_a_printed_document_is_read_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    print_document(json.dumps(NAMES, ensure_ascii=False))
    text = capsys.readouterr().out
    assert not UNSEEN & set(text)
    assert json.loads(text) == NAMES


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


# XML holds no NUL, and a name of a file neither that nor a slash.
CLASSES = [*NAMES[:5], *NAMES[6:]]
FILES = [name.replace("/", "") for name in CLASSES]


def hostile_data(folder: Path) -> Path:
    """Write COCO's files for training and evaluation whose names of classes and pictures are those above."""
    (folder / "images").mkdir(parents=True)
    images, objects = [], []
    for index, name in enumerate(FILES):
        sample = ShapesDataset(len(FILES), seed=5, size=(64, 80))[index]
        (folder / "images" / f"{name}{index}.png").write_bytes(encode_png(sample.image))
        images.append({"id": index + 1, "file_name": f"{name}{index}.png", "width": 80, "height": 64})
        for x_min, y_min, x_max, y_max in sample.boxes.tolist():
            box = [x_min, y_min, x_max - x_min, y_max - y_min]
            more = {"category_id": len(objects) % len(CLASSES) + 1, "image_id": index + 1, "iscrowd": 0}
            objects.append({"id": len(objects) + 1, "bbox": box, "area": box[2] * box[3], **more})
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES, 1)]
    text = json.dumps({"images": images, "annotations": objects, "categories": categories})
    for part in ("train.json", "val.json"):
        (folder / part).write_text(text)
    return folder


class Scripts(HTMLParser):
    """Counts the scripts of a page that are not in files of their own."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inline = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.inline += tag == "script" and "src" not in dict(attrs)


def test_a_page_shows_names_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Template:
        def render(self, content: dict[str, Any]) -> str:
            return "".join(content["names"])

    monkeypatch.setattr("jinja2.Environment.get_template", lambda self, name: Template())
    write_page(tmp_path, "report.html", {"names": NAMES})
    assert not UNSEEN & set((tmp_path / "index.html").read_text("utf-8"))


def commands(data: Path, out: Path) -> Iterator[list[object]]:
    """Yield the words of commands that read, train, judge and write, in an order in which each finds what it needs."""
    run = out / "run"
    yield ["inspect", data, "--sheet", out / "sheet.png"]
    yield ["init", data, "--out", out / "init.config"]
    yield ["config", "show", out / "init.config"]
    yield ["doctor", data]
    yield ["train", data, "--model_dir", run, "--num_train_steps", 2, "--imgsz", 64, "--batch", 2, "--device", "cpu"]
    yield ["evaluate", "--model_dir", run, "--out", out / "eval"]
    yield ["evaluate", "--model_dir", run, "--out", out / "eval2", "--json"]
    yield ["report", out / "eval"]
    yield ["compare", out / "eval", out / "eval2", "--out", out / "compared"]
    yield ["history", run]
    # XML cannot hold these names, so that a conversion to VOC is refused.
    for target in ("yolo/data.yaml", "record/a.record", "coco/a.json"):
        yield ["convert", data / "train.json", out / target]
    yield [
        "predict",
        data / "images",
        "--model",
        run,
        "--min_score",
        0,
        "--out",
        out / "found",
        "--csv",
        "--coco",
        "--json",
    ]
    yield ["export", run, out / "a.safetensors"]


def require_harmless(path: Path) -> None:
    """Refuse a page with scripts of others, formulas in a table, and what a terminal obeys in a text."""
    text = path.read_text("utf-8")
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            cells = [cell for row in csv.DictReader(file) for cell in (row["file"], row["class"])]
        assert [cell for cell in cells if cell[:1] in "=+-@\t\r"] == []
    elif path.suffix not in (
        ".pbtxt",
        ".txt",
        ".yaml",
        ".xml",
        ".config",
    ):  # data, which our readers return as they were
        assert not UNSEEN & set(text), path
    if path.suffix in (".html", ".svg"):
        assert Scripts(text).inline == 0, path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_no_command_prints_or_writes_what_a_terminal_a_browser_or_a_spreadsheet_would_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    data, tried = hostile_data(tmp_path / "data"), set[str]()
    for words in commands(data, tmp_path / "out"):
        tried.add(str(words[0]))
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exception is None, (words, done.output)
        assert not UNSEEN & set(done.output), words
    assert tried < set(COMMANDS)
    kinds = {".csv", ".html", ".json", ".js", ".txt", ".jsonl", ".md", ".svg", ".yaml", ".xml", ".pbtxt", ".config"}
    files = [path for path in (tmp_path / "out").rglob("*") if path.suffix in kinds]
    assert {path.suffix for path in files} > {".csv", ".html", ".json", ".js", ".yaml", ".pbtxt"}
    for path in files:
        require_harmless(path)
