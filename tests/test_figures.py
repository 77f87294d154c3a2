"""The figures of two pages are those that were measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import figures

TEXT = "It takes <!-- made > rows > name=b > ms: {form} -->{text}<!-- --> ms."


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    content = {"rows": [{"name": "a", "ms": 1}, {"name": "b", "ms": 1250.0}], "word": "x"}
    (folder / "made.json").write_text(json.dumps(content))
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    figures.source.cache_clear()
    return tmp_path


@pytest.mark.parametrize(("form", "text"), [(".0f", "1250"), (",.1f", "1,250.0")])
def test_a_figure_is_written(form: str, text: str, made: Path) -> None:
    assert figures.filled(TEXT.format(form=form, text="")) == TEXT.format(form=form, text=text)
    assert list(figures.stale(TEXT.format(form=form, text=text))) == []


def test_a_stale_figure_is_named(made: Path) -> None:
    (line,) = figures.stale(TEXT.format(form=".0f", text="1249"))
    assert line == "made > rows > name=b > ms: 1249 is written, 1250 was measured"
    (line,) = figures.stale("a <!-- made, rows: .0f -->1<!-- --> ms")
    assert line == "1 of the comments that end a figure end none"


@pytest.mark.parametrize(
    ("path", "form", "error"),
    [
        ("none > a", ".0f", "benchmarks/results/none.json: no such file"),
        ("made > rows > name=c > ms", ".0f", "nothing at 'name=c'"),
        ("made > rows > 2", ".0f", "nothing at '2'"),
        ("made > word", ".0f", "made > word: Unknown format code 'f'"),
    ],
)
def test_what_leads_nowhere(path: str, form: str, error: str, made: Path) -> None:
    with pytest.raises(figures.FigureError, match=error):
        figures.written(path, form)


def test_a_table_is_written(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "TABLES", {"made": lambda results: ["| a |", "|---|", f"| {results['word']} |"]})
    page = "Before\n\n<!-- table: made -->\n{}\n<!-- end of table -->\n\nAfter\n"
    whole = page.format("\n| a |\n|---|\n| x |\n")
    assert figures.filled(page.format("old")) == whole
    assert list(figures.stale(whole)) == []
    assert list(figures.stale(page.format("old"))) == ["table made: it is not what was measured"]
    with pytest.raises(figures.FigureError, match="table other: expected one of made"):
        figures.filled(page.replace("made", "other").format(""))


def test_the_pages_are_fresh(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    figures.source.cache_clear()
    monkeypatch.setattr("sys.argv", ["figures.py", "--check"])
    assert figures.main() == 0, capsys.readouterr().out


def test_other_pages_have_no_comments_of_figures() -> None:
    pages = [*figures.ROOT.glob("*.md"), *figures.ROOT.glob("docs/*.md"), *figures.ROOT.glob("benchmarks/*.md")]
    marked = {
        str(page.relative_to(figures.ROOT))
        for page in pages
        if "<!-- -->" in page.read_text() or "<!-- table: " in page.read_text()
    }
    assert marked == set(figures.PAGES)
