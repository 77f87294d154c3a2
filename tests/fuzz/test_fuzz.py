"""The fuzzers themselves: every reader takes its own seeds, changes repeat, and what breaks is found and written down."""

from __future__ import annotations

import os
import random
import time
from itertools import islice
from pathlib import Path

import pytest

from boxwright.base.errors import BoxwrightError
from tests import forked
from tests.fuzz import run
from tests.fuzz.commands import _words
from tests.fuzz.guard import guarded
from tests.fuzz.mutate import mutate
from tests.fuzz.reader import AcceptedError, Reader
from tests.fuzz.readers import READERS


def test_there_is_a_fuzzer_for_each_reader() -> None:
    assert len(READERS) == 49


@pytest.mark.slow_cases("openvino")  # tests/runtime reads such a file too
@pytest.mark.parametrize("name", READERS)
def test_seeds_are_good(name: str, tmp_path: Path) -> None:
    _where_forks_work("seeds_are_good", name, tmp_path)


def seeds_are_good(name: str, folder: Path) -> None:
    seeds = READERS[name].seeds()
    assert seeds

    def read_all() -> str:
        kinds = set()
        for number, seed in enumerate(seeds):
            (folder / str(number)).mkdir()
            try:
                READERS[name].read(seed, folder / str(number))
                kinds.add("read")
            except BoxwrightError:
                kinds.add("refused")
        return " ".join(sorted(kinds))

    # In one process, as a fork of this one takes as long as most seeds.
    outcome = guarded(read_all)
    assert outcome.kind == "returned", outcome.text
    assert outcome.text in ("'read'", "'read refused'"), "a reader that refuses its own seeds tests nothing"


def _where_forks_work(check: str, name: str, *arguments: object) -> None:
    """Call a check of this module: of OpenVINO in a process that has none of its threads, for which a fork waits."""
    if name != "openvino":
        globals()[check](name, *arguments)
        return
    code = f"from pathlib import PosixPath; from tests.fuzz import test_fuzz; test_fuzz.{check}{(name, *arguments)!r}"
    done = forked.run(["-c", code], cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


@pytest.mark.slow_cases("config_yaml-4", "pt2-4", "litert-4", "openvino-4")
@pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", READERS)
def test_some_changed_inputs(name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_FINDINGS", str(tmp_path))
    _where_forks_work("changed_inputs_are_met", name, count, tmp_path)


def changed_inputs_are_met(name: str, count: int, findings: Path) -> None:
    found = run._in_a_process(name, list(islice(run.inputs(name, 11), count)), time.monotonic() + 3600)
    assert found.total() == count
    assert not found["FINDING"], [path.read_text() for path in findings.glob("*.txt")]


def test_the_same_seed_gives_the_same_inputs() -> None:
    first, second, other = (list(islice(run.inputs("coco", seed), 30)) for seed in (1, 1, 2))
    assert first == second != other
    rng = random.Random(0)
    assert all(isinstance(mutate(b"", rng, [b"x"]), bytes) for _ in range(300)), "nothing, too, can be changed"


@pytest.mark.parametrize("kind", ["raises", "dies", "memory", "accepts", "long"])
def test_what_breaks_is_found(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader with each kind of fault at one of five inputs: one finding, with its input, and the others are read."""
    from boxwright.base.errors import DataError

    class LongError(DataError):
        def __str__(self) -> str:
            return "x" * 9000

    def read(data: bytes, folder: Path) -> None:
        if data != b"2":
            return
        if kind == "dies":
            os.abort()
        if kind == "memory":
            _ = bytearray(2**40)
        raise {"raises": ValueError("x"), "accepts": AcceptedError("x"), "long": LongError()}[kind]

    monkeypatch.setenv("BOXWRIGHT_FINDINGS", str(tmp_path))
    monkeypatch.setitem(READERS, "odd", Reader(lambda: [b"0"], read))
    found = run._in_a_process("odd", [b"0", b"1", b"2", b"3", b"4"], time.monotonic() + 3600)
    assert found == {"read": 4, "FINDING": 1}
    assert [path.read_bytes() for path in tmp_path.glob("*.bin")] == [b"2"]


def test_command_lines_are_many(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    rng = random.Random(0)
    lines = {tuple(_words(rng, tmp_path)) for _ in range(300)}
    assert len(lines) > 150
    assert {words[0] for words in lines if words} >= {"train", "evaluate", "predict", "convert", "inspect", "config"}
