"""What the comparison concludes from many differences at once, and which detections of two lists are the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from boxwright.exporters.matching import Difference, Matcher
from boxwright.exporters.parity import Report, _Detections
from boxwright.types import Array, Detections


def outputs(count: int) -> dict[str, Any]:
    corners = np.linspace(0, 0.5, count, dtype=np.float32)
    return {
        "detection_boxes": np.stack([corners, corners, corners + 0.1, corners + 0.1], 1)[None],
        "detection_scores": np.full((1, count), 0.07, np.float32),
        "detection_classes": np.ones((1, count), np.float32),
        "num_detections": np.full(1, count, np.float32),
    }


def test_too_few_candidates_are_told_however_much_is_missing() -> None:
    """Detectors that have learnt little score everywhere: what is missing is legion, and more candidates cure it."""

    def all_missing(found: Any, wanted: Any) -> Difference:
        return Difference(missing=[f"object {number}" for number in range(len(wanted))])

    stages = []
    for name in ("suppression", "detections"):
        one = _Detections(name)
        for picture in range(3):
            image = np.zeros((10, 10, 3), np.uint8)
            one.add(outputs(0), outputs(30), (picture, image), all_missing)  # type: ignore[arg-type]
        stages.append(one)
    stages[1].too_few.append("picture 2: candidates that suppression ignored could matter")
    report = Report([one.stage() for one in stages], {})
    assert not report.complete
    assert not report.passed
    assert report.problem().startswith("detections: picture 2: candidates that suppression ignored")
    assert [stage.largest for stage in report.stages] == [90, 91]
    complete = Report([stages[0].stage()], {})
    assert complete.complete
    assert complete.problem().startswith("suppression: picture 0: missing object 0")


MATCH = Matcher(least_score=0.05, iou_threshold=0.5)
Row = tuple[list[float], float, int, int]
# (box, score, label, anchor); the second overlaps the first by 80 of 120, two thirds.
A: Row = ([0, 0, 10, 10], 0.9, 0, 1)
B: Row = ([2, 0, 12, 10], 0.8, 0, 2)
FAR: Row = ([50, 50, 60, 60], 0.7, 0, 3)
LAST: Row = ([80, 80, 90, 90], 0.3, 1, 4)


def found(*rows: Row) -> Detections[Array]:
    ranked = sorted(rows, key=lambda row: -row[1])
    return Detections(
        np.array([row[0] for row in ranked], np.float32).reshape(-1, 4),
        np.array([row[1] for row in ranked], np.float32),
        np.array([row[2] for row in ranked], np.int64),
        (100, 100),
        anchor_indices=np.array([row[3] for row in ranked], np.int64),
    )


def changed(
    row: Row, *, score: float | None = None, anchor: int | None = None, shift: float = 0, label: int | None = None
) -> Row:
    box, old_score, old_label, old_anchor = row
    return (
        [side + shift for side in box],
        old_score if score is None else score,
        old_label if label is None else label,
        old_anchor if anchor is None else anchor,
    )


def counts(difference: Difference) -> tuple[int, int, int]:
    return len(difference.missing), len(difference.extra), len(difference.ties)


def test_the_same_in_any_order() -> None:
    assert counts(MATCH(found(A, FAR, LAST), found(LAST, FAR, A))) == (0, 0, 0)
    assert counts(MATCH(found(), found())) == (0, 0, 0)
    moved = changed(FAR, anchor=9, shift=0.01)
    assert counts(MATCH(found(A, moved), found(A, FAR))) == (0, 0, 0), "another anchor at the same place"


def test_differences_are_counted() -> None:
    assert counts(MATCH(found(A), found(A, FAR))) == (1, 0, 0)
    assert counts(MATCH(found(A, FAR), found(A))) == (0, 1, 0)
    assert counts(MATCH(found(A, changed(FAR, shift=5)), found(A, FAR))) == (1, 1, 0), "the same anchor elsewhere"
    assert counts(MATCH(found(A, changed(FAR, label=1)), found(A, FAR, LAST))) == (2, 1, 0)
    assert "class 1 at (50.0, 50.0, 60.0, 60.0), score 0.7" in MATCH(found(A), found(A, FAR)).missing[0]


def test_scores_are_shares_of_what_is_allowed() -> None:
    difference = MATCH(found(changed(A, score=0.902)), found(A))
    assert counts(difference) == (0, 0, 0)
    assert abs(difference.largest["scores"] - 0.002 / (1e-4 + 0.9e-3)) < 1e-3


def test_equal_scores_may_stand_for_each_other_where_one_suppresses_the_other() -> None:
    rival = changed(B, score=0.9 - 5e-6)
    assert counts(MATCH(found(rival, FAR), found(A, FAR))) == (0, 0, 1)
    assert counts(MATCH(found(changed(B, score=0.899), FAR), found(A, FAR))) == (1, 1, 0), "not equal"
    apart = changed(FAR, score=0.9 - 5e-6, shift=20, anchor=7)
    assert counts(MATCH(found(apart, LAST), found(A, LAST))) == (1, 1, 0), "equal, but apart: both should be there"
    last = changed(LAST, score=0.3 + 5e-6, shift=-60, anchor=7)
    assert counts(MATCH(found(A, last), found(A, LAST))) == (0, 0, 1), "one place was left"


def test_thresholds() -> None:
    low = changed(FAR, score=0.05 + 5e-6)
    assert counts(MATCH(found(A), found(A, low))) == (0, 0, 1)
    third = ([0, 0, 10, 20], 0.85, 0, 8)  # half of it is A
    assert counts(MATCH(found(A, third), found(A))) == (0, 0, 1), "an overlap of exactly a half"
    assert counts(MATCH(found(A, ([0, 0, 10, 21], 0.85, 0, 8)), found(A))) == (0, 1, 0)


def test_what_rounding_decides_explains_what_follows_from_it() -> None:
    unsteady = Matcher(0.05, 0.5, frozenset({1}), frozenset({1}))
    assert counts(unsteady(found(FAR), found(A, FAR))) == (0, 0, 1)
    assert counts(unsteady(found(B, FAR), found(A, FAR))) == (0, 0, 2), "B lives where A does not"
    assert counts(unsteady(found(FAR, LAST), found(A, FAR))) == (0, 0, 2), "the place that A left"
    assert counts(unsteady(found(FAR), found(A, FAR, LAST))) == (1, 0, 1), "LAST has no reason to be missing"
    assert unsteady(found(changed(A, score=0.5)), found(A)).largest["scores"] == 0
