"""The text of the package and of its documentation, searched for words that the project does not write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
WORDS = [
    line for line in (Path(__file__).parent / "house_words.txt").read_text().splitlines() if not line.startswith("#")
]
# The longest part of a word without metacharacters: looking for it first is a hundred times as fast as 49 expressions.
PATTERNS = [
    (max(re.split(r"\\.|\([^)]*\)\??|.\?", word), key=len).lower(), re.compile(word, re.IGNORECASE)) for word in WORDS
]
ANYWHERE = ""


class Allowed(NamedTuple):
    """A legitimate use: a regular expression that a match must lie in, the files that may have it, and the reason."""

    use: str
    path: str
    reason: str


ALLOWED = [
    Allowed(r"\bwas=\"\w+\"", ANYWHERE, "an old spelling of a field, which is still read"),
    Allowed("[\"']colour[\"']", "src/boxwright/exporters/describe.py", "a key of the metadata in exported files"),
    Allowed(r"\.get\('colour'\)", "src/boxwright/cli/inspect.py", "the same key, read"),
    Allowed('"pixel centre"', ANYWHERE, "a key of the metadata in exported LiteRT files"),
    Allowed(r"\[[^\]]*\]\(https?:[^)]*\)", ANYWHERE, "the title and address of somebody else's page"),
]


class Finding(NamedTuple):
    """A match that no allowed use covers."""

    path: str
    line: int
    word: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word}"


def searched_files() -> list[Path]:
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [*sorted((ROOT / "src").rglob("*.py")), *documents]


def findings(text: str, path: str) -> Iterator[Finding]:
    patterns = _possible(text)
    for number, line in enumerate(text.splitlines() if patterns else (), start=1):
        allowed = [use.span() for use in _allowed_uses(line, path)]
        for match in (match for pattern in patterns for match in pattern.finditer(line)):
            if not any(start <= match.start() and match.end() <= end for start, end in allowed):
                yield Finding(path, number, match[0])


def _possible(text: str) -> list[re.Pattern[str]]:
    lowered = text.lower()
    return [pattern for stem, pattern in PATTERNS if stem in lowered]


def _allowed_uses(line: str, path: str) -> Iterator[re.Match[str]]:
    for allowed in ALLOWED:
        if path.startswith(allowed.path):
            yield from re.finditer(allowed.use, line)


def test_no_house_words() -> None:
    named = [
        str(finding) for path in searched_files() for finding in findings(path.read_text(), str(path.relative_to(ROOT)))
    ]
    assert not named, "\n".join(named)


def test_the_search_covers_the_words_and_the_files() -> None:
    assert len(PATTERNS) == len(set(WORDS)) >= 49
    assert all(len(stem) >= 4 for stem, _ in PATTERNS)
    assert not any("|" in re.sub(r"\([^)]*\)", "", word) for word in WORDS), "an alternative has no common stem"
    files = searched_files()
    assert len([path for path in files if path.suffix == ".py"]) >= 400
    assert len([path for path in files if path.suffix == ".md"]) >= 19


def test_a_planted_word_is_named_with_its_place() -> None:
    text = "The colors of a box.\nIts Colour is grey, and its center is not.\n"
    assert [str(finding) for finding in findings(text, "a.py")] == ["a.py:2: Colour", "a.py:2: grey"]


def test_every_word_is_searched_for_in_any_case() -> None:
    for sentence in ("One after the other", "TAKE_IN", "def _deaf_to_dead_workers():", "normalising", "a Licence"):
        assert len(list(findings(sentence, "a.md"))) == 1, sentence


def test_an_allowed_use_does_not_excuse_the_rest_of_its_line() -> None:
    line = 'color: str = field("", "The colour.", was="colour")'
    assert [finding.word for finding in findings(line, "src/boxwright/config/messages/a.py")] == ["colour"]
    assert list(findings(line.replace("The colour", "The color"), "src/boxwright/config/messages/a.py")) == []


def test_every_allowed_use_has_a_reason() -> None:
    assert all(allowed.reason for allowed in ALLOWED)
