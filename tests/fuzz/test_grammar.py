"""Readers take documents of their format's grammar, or refuse them with an error of one line; they write nothing."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

from tests.fuzz.grammar import grammars, read_documents
from tests.fuzz.guard import guarded

NAMES = sorted(grammars())
# What a reader may take beyond the process that it runs in.
MEMORY = 2**30


@pytest.mark.parametrize("count", [4, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_documents_are_read_or_refused_in_a_line(
    name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HOME", "BOXWRIGHT_CACHE"):
        (tmp_path / variable).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.chdir(tmp_path / "HOME")
    outcome = guarded(lambda: read_documents(name, count, 5, tmp_path), seconds=600, memory=MEMORY)
    assert outcome.kind == "returned", outcome.text
    assert "read" in outcome.text or count < 100, outcome.text
    assert [*(tmp_path / "HOME").iterdir(), *(tmp_path / "BOXWRIGHT_CACHE").iterdir()] == []


@pytest.mark.parametrize("name", ["coco", "config_yaml", "voc"])
def test_documents_differ(name: str) -> None:
    drawn: list[bytes] = []

    @hypothesis.settings(
        max_examples=30,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[*hypothesis.HealthCheck],
    )
    @hypothesis.given(grammars()[name])
    def collect(data: bytes) -> None:
        drawn.append(data)

    collect()
    assert len(set(drawn)) > 10
