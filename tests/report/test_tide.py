"""Types of errors are those of the package `tidecv`, and the average precision that fixing them brings is, too."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boxwright.report.tables import Tables
from boxwright.report.tide import NAMES, tide
from tests.report import made

SHORT = dict(zip(("Cls", "Loc", "Both", "Dupe", "Bkg", "Miss"), NAMES, strict=True))


def of_tidecv(content: dict[str, Any], rows: made.Rows) -> tuple[float, dict[str, float], dict[str, int]]:
    """AP, gains and counts, in 0..1, at the package's own settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports
        tidecv = pytest.importorskip("tidecv")
    truth, found = tidecv.Data("truth", max_dets=100), tidecv.Data("found", max_dets=100)
    for image in content["images"]:
        truth.add_image(image["id"], image["file_name"])
    for row in content["annotations"]:
        add = truth.add_ignore_region if row["iscrowd"] else truth.add_ground_truth
        add(row["image_id"], row["category_id"], row["bbox"])
    for row in rows:
        found.add_detection(row["image_id"], row["category_id"], row["score"], row["bbox"])
    run = tidecv.TIDE().evaluate(truth, found, mode=tidecv.TIDE.BOX)
    gains = {SHORT[error.short_name]: gain / 100 for error, gain in run.fix_main_errors().items()}
    special = {error.short_name: gain / 100 for error, gain in run.fix_special_errors().items()}
    gains |= {"false positives": special["FalsePos"], "false negatives": special["FalseNeg"]}
    counts = {SHORT[error.short_name]: count for error, count in run.count_errors().items()}
    return run.ap / 100, gains, counts


@pytest.mark.slow_cases("False-0")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("crowded", [False, True])
def test_it_is_tidecvs(seed: int, crowded: bool, tmp_path: Path) -> None:
    content, rows = made.messy(seed, crowded=crowded)
    average, gains, counts = of_tidecv(content, [dict(row) for row in rows])
    ours = tide(made.tables(tmp_path, content, rows))
    assert ours.counts == counts
    assert min(counts.values()) > 0
    assert ours.average_precision == pytest.approx(average, abs=1e-9)
    for name, gain in gains.items():
        assert ours.gains[name] == pytest.approx(gain, abs=1e-9), name


A, B = (10, 10, 20, 20), (100, 100, 20, 20)


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("classification", (0, 1, A, 0.9)),  # right place, wrong class
        ("localization", (0, 0, (20, 10, 20, 20), 0.9)),  # shares a third: between 0.1 and 0.5
        ("both", (0, 1, (20, 10, 20, 20), 0.9)),  # neither
        ("duplicate", (0, 0, (11, 10, 20, 20), 0.4)),  # after the one that found it
        ("background", (0, 0, (200, 10, 20, 20), 0.9)),
        ("missed", None),
    ],
)
def test_each_type_by_hand(kind: str, row: Any, tmp_path: Path) -> None:
    """Two objects of class 0 and one of class 1; the one at A is found only where that is no matter."""
    content = made.truth([(300, 300)], [(0, 0, A), (0, 0, B), (0, 1, (200, 200, 30, 30))], ["a", "b"])
    rows = [(0, 0, B, 0.8), (0, 1, (200, 200, 30, 30), 0.8)]
    if kind in ("duplicate", "background"):
        rows.append((0, 0, A, 0.7))
    if row is not None:
        rows.append(row)
    ours = tide(made.tables(tmp_path, content, made.found(rows)))
    expected = dict.fromkeys(NAMES, 0) | {kind: 1}
    if kind == "both":
        expected["missed"] = 1  # that detection can help nobody
    assert ours.counts == expected


def test_gains_by_hand(tmp_path: Path) -> None:
    """One class, two objects: found at 0.9, a false alarm at 0.8, and the second only nearly found at 0.7.

    Recall reaches 1/2 with precision 1: 51 of 101 points. Moved, the last is right at precision 2/3, for the 50 points
    beyond. Without the false alarm nothing changes, as no object is found after it.
    """
    content = made.truth([(300, 300)], [(0, 0, A), (0, 0, B)], ["a"])
    rows = [(0, 0, A, 0.9), (0, 0, (200, 10, 20, 20), 0.8), (0, 0, (110, 100, 20, 20), 0.7)]
    ours = tide(made.tables(tmp_path, content, made.found(rows)))
    assert ours.average_precision == pytest.approx(51 / 101)
    assert ours.gains["localization"] == pytest.approx(50 * (2 / 3) / 101)
    assert ours.gains["background"] == 0
    assert ours.gains["missed"] == 0
    # The second object can be found, so that it counts as not found, but not as missed.
    assert ours.gains["false negatives"] == pytest.approx(50 / 101)


def test_nothing_at_all(tmp_path: Path) -> None:
    """Of no detections all objects are missed; without objects all detections are background."""
    content = made.truth([(300, 300)], [(0, 0, A)], ["a"])
    ours = tide(made.tables(tmp_path / "a", content, []))
    assert (ours.average_precision, ours.counts["missed"]) == (0, 1)
    content = made.truth([(300, 300)], [], ["a"])
    ours = tide(made.tables(tmp_path / "b", content, made.found([(0, 0, A, 0.9)])))
    assert (ours.average_precision, ours.counts["background"]) == (0, 1)
    empty: Tables = made.tables(tmp_path / "c", content, [])
    assert tide(empty).average_precision == 0
    assert not np.isnan(list(tide(empty).gains.values())).any()
