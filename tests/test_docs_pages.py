"""What the pages of the documentation are held to: short paragraphs, and commands that there are."""

from __future__ import annotations

import doctest
import inspect
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from website import reference
from website.search import SOUGHT, unfound

import boxwright
from boxwright.cli.commands import load_command

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_MOST_WORDS = 120
# Pages whose commands stand in tables and sentences, and are not run as blocks.
_ADVICE = ("troubleshooting.md", "faq.md")


def paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs and items of lists; tables, code and comments are none."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=\|)", text):
        if not part.lstrip().startswith("|"):
            yield re.sub(r"\]\([^)]*\)", "]", part)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_paragraphs_are_short(page: Path) -> None:
    for paragraph in paragraphs(page.read_text()):
        assert len(paragraph.split()) <= _MOST_WORDS, f"{page.name}: {paragraph.strip()[:80]}"


def advised() -> list[str]:
    """Return the commands in the sentences and tables of the pages that give advice."""
    texts = [(ROOT / "docs" / name).read_text() for name in _ADVICE]
    return sorted({command for text in texts for command in re.findall(r"`(boxwright [^`…]+)`", text)})


@pytest.mark.parametrize("command", advised())
def test_advised_commands_and_options_are_there(command: str) -> None:
    _, name, *words = shlex.split(command)
    group: Any = load_command(name)
    if hasattr(group, "commands"):
        group, words = group.commands[words[0]], words[1:]
    known = {option for parameter in group.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {f"--{word[2:].replace('-', '_')}" for word in words if word.startswith("--")} <= known


def test_what_people_look_for_is_in_the_text() -> None:
    """In one section, as the index of the built site is checked by `make site`."""
    text = "\n".join(page.read_text().lower() for page in PAGES)
    assert [words for words in SOUGHT if words.lower() not in text] == []


def test_words_that_no_section_has_are_named(tmp_path: Path) -> None:
    items = [{"title": "Early", "text": " ".join(SOUGHT[3:])}, {"title": "Out of memory", "text": "stopping"}]
    (tmp_path / "search.json").write_text(json.dumps({"items": items}))
    assert list(unfound(tmp_path)) == ["custom dataset", "early stopping"]


def test_the_python_page_begins_with_what_is_used_most() -> None:
    page = reference.python()
    names = [line.rsplit(".", 1)[1] for line in page.splitlines() if line.startswith("::: ")]
    assert names[:5] == ["load", "Model", "Result", "train", "Run"]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", boxwright.__all__)
def test_examples_of_a_docstring_are_a_section(name: str) -> None:
    """Elsewhere Markdown takes >>> for quotations, and brackets in what an example prints for links."""
    text = inspect.getdoc(getattr(boxwright, name)) or ""
    assert not re.search(r"^>>>", text, re.MULTILINE)


@pytest.mark.slow
def test_the_python_pages_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(
        "\n".join(re.findall(r"```pycon\n(.*?)```", reference.python(), re.DOTALL)), {}, "python_reference.md", None, 0
    )
    assert len(test.examples) > 10
    failed = doctest.DocTestRunner().run(test)
    assert failed.failed == 0


def test_every_error_class_has_a_remedy() -> None:
    classes = {name for name in boxwright.__all__ if name.endswith("Error") and name != "BoxwrightError"}
    assert set(reference._REMEDIES) == classes
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert all(f"| `{name}` |" in text for name in classes)
