"""What became of each detection and object, and the confusion matrix, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boxwright.report.analysis import analyze
from boxwright.report.events import label_disagreements, to_coco, trusted_classes
from boxwright.report.matching import TYPES, class_curves, compute_outcomes, confusion, match
from boxwright.report.scores import choose, score_curve
from tests.report import made

A, B, C = (10, 10, 20, 20), (100, 100, 20, 20), (200, 200, 30, 30)


def test_events_and_matrix_by_hand(tmp_path: Path) -> None:
    """A cat found, a cat taken for a dog, a dog missed, a dog where nothing is, and one below the threshold."""
    content = made.truth([(300, 300)], [(0, 0, A), (0, 0, B), (0, 1, C)], ["cat", "dog"])
    rows = [(0, 0, A, 0.9), (0, 1, B, 0.8), (0, 1, (10, 200, 20, 20), 0.7), (0, 1, C, 0.2)]
    tables = made.tables(tmp_path, content, made.found(rows))
    events = compute_outcomes(tables, match(tables), 0.5)
    assert [TYPES[kind] for kind in events.types] == ["right", "classification", "background", "missed"]
    assert events.objects.tolist() == [0, 1, -1, 2]
    assert events.detections.tolist() == [0, 1, 2, -1]
    # Rows are truth, columns what was found; the last of each is nothing.
    np.testing.assert_array_equal(confusion(tables, events), [[1, 1, 0], [0, 0, 1], [0, 1, 0]])


@pytest.mark.parametrize("seed", [0, 1])
def test_every_object_and_detection_is_in_one_event(seed: int, tmp_path: Path) -> None:
    tables = made.tables(tmp_path, *made.messy(seed))
    matching = match(tables)
    events = compute_outcomes(tables, matching, 0.3)
    objects, found = events.objects[events.objects >= 0], events.detections[events.detections >= 0]
    assert sorted(objects) == np.flatnonzero(~tables.objects.crowd).tolist()
    assert sorted(found) == np.flatnonzero(matching.counted[0] & (tables.detections.scores >= 0.3)).tolist()
    matrix = confusion(tables, events)
    assert matrix.sum() == len(events)
    # The diagonal is what precision and recall count.
    curves = class_curves(tables, matching)
    judged = score_curve(curves).at(0.3)
    right = np.trace(matrix[:-1, :-1])
    assert right / matrix[:, :-1].sum() == pytest.approx(judged.precision)
    assert right / matrix[:-1].sum() == pytest.approx(judged.recall)


def test_a_threshold_by_hand(tmp_path: Path) -> None:
    """Right at 0.9 and 0.7, wrong at 0.8 and 0.6, of two objects: F1 is 2/3, 1/2, 4/5, 2/3; the third is best."""
    content = made.truth([(300, 300)], [(0, 0, A), (0, 0, B)], ["cat"])
    rows = [(0, 0, A, 0.9), (0, 0, C, 0.8), (0, 0, B, 0.7), (0, 0, (10, 200, 9, 9), 0.6)]
    tables = made.tables(tmp_path, content, made.found(rows))
    curve = score_curve(class_curves(tables, match(tables)))
    assert curve.best() == 0.7
    assert [curve.at(score).f1 for score in (0.9, 0.8, 0.7, 0.6)] == pytest.approx([2 / 3, 1 / 2, 4 / 5, 2 / 3])
    assert np.isnan(curve.at(0.95).precision)
    assert curve.at(0.95).recall == 0


def test_a_threshold_is_judged_on_images_that_it_was_not_chosen_on(tmp_path: Path) -> None:
    tables = made.tables(tmp_path, *made.messy(0, 60))
    curves = class_curves(tables, match(tables))
    chosen = choose(curves, 60)
    assert chosen is not None
    assert chosen.chosen_on.f1 != chosen.judged_on.f1
    assert chosen.chosen_on.f1 == max(
        score_curve(curves, images_of(60)).at(t).f1 for t in np.arange(0, 1, 0.01).round(2)
    )


def images_of(count: int) -> np.ndarray:
    from boxwright.report.scores import halves

    first, second = halves(count)
    assert not (first & second).any()
    assert (first | second).all()
    return first


def test_images_of_label_errors_have_numbers(tmp_path: Path) -> None:
    """Annotation tools take no other ids; numbers stay as they are."""
    content = made.truth([(300, 300)] * 2, [(0, 0, (10, 10, 20, 20)), (1, 0, (10, 10, 20, 20))], ["a"])
    rows = made.found([(0, 0, (10, 10, 20, 20), 0.6), (1, 0, (10, 10, 20, 20), 0.6), (1, 0, (100, 100, 50, 50), 0.9)])
    for ids, expected in (([7, 9], 9), (["x", "y"], 2), ([7, "y"], 2)):
        for number, identity in enumerate(ids):
            content["images"][number]["id"] = content["annotations"][number]["image_id"] = identity
            rows[number]["image_id"] = identity
        rows[2]["image_id"] = ids[1]
        analysis = analyze(made.tables(tmp_path, content, rows))
        found = to_coco(analysis.tables, analysis.outcomes, label_disagreements(analysis))
        assert [image["id"] for image in found["images"]] == [row["image_id"] for row in found["annotations"]]
        assert found["images"] == [{"id": expected, "file_name": "2.jpg", "width": 300, "height": 300}]


def test_which_detections_disagree_with_the_labels(tmp_path: Path) -> None:
    """By hand, in eight images that are alike, so that each half of them chooses the same thresholds.

    Cats are found at 0.8 (AP50 1 but for what is wrong before), dogs never: an AP50 of 0. In the first image are
    detections of nothing: cats at 0.95, 0.85 and 0.2, which is below the score of the best F1, and a dog at 0.99.
    """
    images = range(8)
    truth = [(n, label, box) for n in images for label, box in ((0, A), (1, B))]
    content = made.truth([(400, 400)] * 8, truth, ["cat", "dog", "never annotated"])
    nothing = [(300, 300, 20, 20), (300, 100, 20, 20), (100, 300, 20, 20), (350, 350, 20, 20)]
    rows = [(n, 0, A, 0.8) for n in images]
    rows += [(0, 0, nothing[0], 0.85), (0, 0, nothing[1], 0.95), (0, 0, nothing[2], 0.2), (0, 1, nothing[3], 0.99)]
    rows += [(1, 2, nothing[0], 0.9)]
    analysis = analyze(made.tables(tmp_path, content, made.found(rows)))
    assert trusted_classes(analysis).tolist() == [True, False, False]
    events = label_disagreements(analysis)
    tables, outcomes = analysis.tables, analysis.outcomes
    assert tables.detections.scores[outcomes.detections[events]].tolist() == [0.95, 0.85]
    assert tables.detections.labels[outcomes.detections[events]].tolist() == [0, 0]
    assert [TYPES[kind] for kind in outcomes.types[events]] == ["background", "background"]


def test_labels_are_not_doubted_where_nothing_is_found(tmp_path: Path) -> None:
    content = made.truth([(300, 300)] * 2, [(0, 0, A)], ["cat"])
    for rows in ([], [(1, 0, B, 0.99)]):
        analysis = analyze(made.tables(tmp_path, content, made.found(rows)))
        assert label_disagreements(analysis).tolist() == []
