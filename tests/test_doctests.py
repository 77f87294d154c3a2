"""The examples of docstrings, run as a user would: in a folder with a run, photos and annotated pictures."""

from __future__ import annotations

import doctest
import importlib
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

import boxwright as bw
from boxwright.cli.console import console
from boxwright.data.convert import write_yolo
from tests.api.models import DATA, small_run

MODULES = {"boxwright": 10, "boxwright.api.model": 5, "boxwright.api.result": 5, "boxwright.api.train": 2}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a folder with what the examples name."""
    monkeypatch.chdir(tmp_path)
    run = small_run()
    shutil.copytree(run.folder, "model")
    Path("photos").mkdir()
    for number, name in enumerate(("street", "yard")):
        Image.fromarray(DATA[number].image).save(f"photos/{name}.png")
    for split in ("train", "val"):
        write_yolo(DATA, Path("my-data/data.yaml"), split)
    monkeypatch.setenv("BOXWRIGHT_OFFLINE", "1")


def examples(module: ModuleType) -> list[doctest.DocTest]:
    return [test for test in doctest.DocTestFinder().find(module, globs={"boxwright": bw}) if test.examples]


# They train.
@pytest.mark.slow_cases("boxwright.api.train", "boxwright")
@pytest.mark.usefixtures("work")
@pytest.mark.filterwarnings("ignore:masks are dropped")
@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(name)
    tests = examples(module)
    assert sum(len(test.examples) for test in tests) == MODULES[name]
    for test in tests:
        if name == "boxwright.api.train":  # the run of the example is a new one
            shutil.rmtree("model")
        # What training prints is for people, and differs.
        monkeypatch.setattr(console, "quiet", True)
        failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
        assert not failed, capsys.readouterr().out


def test_help_begins_with_what_people_use() -> None:
    import pydoc

    text = pydoc.plain(pydoc.render_doc(bw))
    places = [
        text.index(word) for word in ('bw.load("model")', "bw.train(", "PACKAGE CONTENTS", "class AnchorPredictions")
    ]
    assert places == sorted(places)
    assert "\n    load(source: " in text
    assert "class Result(" in text
