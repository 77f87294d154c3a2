"""What a type checker knows of calls of a model; `make check` runs it on this file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, assert_type

import numpy as np

import boxwright as bw
from tests.api.models import small_run


def test_one_picture_is_a_result_and_a_list_a_list() -> None:
    run = small_run()
    model = bw.load(run.folder)
    array = np.zeros((96, 96, 3), np.uint8)
    one = model(str(run.picture), conf=0.3)
    assert_type(one, bw.Result)
    assert_type(model(run.picture), bw.Result)
    assert_type(model(run.picture.read_bytes()), bw.Result)
    assert_type(model(array, scale="pixels"), bw.Result)
    assert isinstance(one, bw.Result)
    several = model([run.picture, array], min_score=0.3, batch_size=2)
    assert_type(several, list[bw.Result])
    assert_type(model((run.picture,)), list[bw.Result])
    assert_type(model(iter([array])), list[bw.Result])
    assert isinstance(several, list)
    model(array, confidence=0.3) if np.ndim(array) == 0 else None  # type: ignore[call-overload]  # no such keyword
    anything: Any = array
    assert isinstance(model(anything), bw.Result)


def test_this_file_is_checked() -> None:
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "tests/api/test_typing.py" in settings["tool"]["mypy"]["files"]
