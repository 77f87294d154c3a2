"""Two evaluations: what is more than chance, which objects were gained and lost, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boxwright.base.errors import DataError
from boxwright.report.compare import compare
from tests.cli.test_commands import run
from tests.report import made

A, B = (10, 10, 20, 20), (100, 100, 20, 20)


def evaluation(folder: Path, content: dict[str, Any], rows: made.Rows) -> Path:
    """The folder of an evaluation."""
    folder.mkdir()
    (folder / "truth.json").write_text(json.dumps(content))
    (folder / "detections.json").write_text(json.dumps(rows))
    return folder


def test_gained_and_lost_by_hand(tmp_path: Path) -> None:
    """The first finds A, the second B; both also find C."""
    objects = [(0, 0, A), (0, 0, B), (0, 0, (200, 200, 30, 30))]
    content = made.truth([(300, 300)], objects, ["a"])
    both = (0, 0, (200, 200, 30, 30), 0.9)
    first, second = ([(0, 0, box, 0.8), both] for box in (A, B))
    found = compare(
        made.tables(tmp_path / "1", content, made.found(first)),
        made.tables(tmp_path / "2", content, made.found(second)),
    )
    assert (found.gained.tolist(), found.lost.tolist()) == ([1], [0])
    assert found.metrics[0].difference.value == 0
    assert found.metrics[0].verdict == "may be chance"


def test_a_better_detector_is_better_and_itself_may_be_chance(tmp_path: Path) -> None:
    content, rows = made.messy(0, 60)
    random = np.random.default_rng(0)
    # Every second object is found exactly in addition.
    more = [
        {"image_id": row["image_id"], "category_id": row["category_id"], "bbox": row["bbox"], "score": 0.99}
        for row in content["annotations"]
        if random.uniform() < 0.5
    ]
    plain, better = (evaluation(tmp_path / name, content, rows + add) for name, add in (("a", []), ("b", more)))
    output = run("compare", plain, better, "--out", tmp_path / "c")
    assert output.splitlines()[-1] == f"next: open {tmp_path / 'c' / 'index.html'}"
    assert "better" in output
    numbers = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert numbers["metrics"][0]["difference"][1] > 0
    # Its own threshold is higher: what it found before at low scores counts as lost.
    assert numbers["gained"] > 0
    assert "may be chance" in run("compare", plain, plain, "--out", tmp_path / "d")
    by_class = json.loads((tmp_path / "c" / "comparison.json").read_text())["classes"]
    assert by_class[-1]["verdict"] == "not known"  # a class without objects


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    content = made.truth([(300, 300)], [(0, 0, A)], ["a"])
    first = made.tables(tmp_path / "1", content, [])
    for changed, message in (
        (made.truth([(300, 300)], [(0, 0, A)], ["b"]), "other classes"),
        (made.truth([(300, 300)] * 2, [(0, 0, A)], ["a"]), "other images"),
        (made.truth([(300, 300)], [(0, 0, B)], ["a"]), "other objects"),
        (made.truth([(300, 300)], [], ["a"]), "other objects"),
    ):
        with pytest.raises(DataError, match=message):
            compare(first, made.tables(tmp_path / "2", changed, []))
