"""Rules that the recorded evaluation does not tell apart, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from boxwright.evaluation.metrics.average_precision import all_points, eleven_points, precision_and_recall
from boxwright.evaluation.metrics.pascal import (
    OPEN_IMAGES_CHALLENGE,
    OPEN_IMAGES_V2,
    PASCAL_VOC,
    PASCAL_VOC_2007,
    WEIGHTED_PASCAL_VOC,
    PascalMetrics,
    PascalRules,
    precision_at_recall,
)
from boxwright.types import Array, Categories, Category, Detections, Sample
from tests.conftest import found_objects

CATEGORIES = Categories((Category(0, 1, "a"), Category(1, 2, "b")))
A, FAR = [0, 0, 10, 10], [50, 50, 60, 60]
HALF = [0, 0, 10, 5]  # overlaps A by exactly 0.5


def truth(boxes: list[list[float]], labels: list[int] | None = None, **marks: list[bool]) -> Sample:
    count = len(boxes)
    flags = {name: np.array(values, np.bool_) for name, values in marks.items() if name != "verified"}
    return Sample(
        np.zeros((1, 1, 3), np.uint8),
        np.array(boxes, np.float32).reshape(count, 4),
        np.array(labels or [0] * count),
        verified_labels=np.array(marks.get("verified", []), np.int64),
        **flags,
    )


def found(*rows: tuple[list[float], float, int]) -> Detections[Array]:
    boxes = torch.tensor([row[0] for row in rows], dtype=torch.float32).reshape(len(rows), 4)
    return found_objects(boxes, torch.tensor([row[1] for row in rows]), torch.tensor([row[2] for row in rows]), (1, 1))


def score(rules: PascalRules, *images: tuple[Sample, Detections[Array]]) -> dict[str, float]:
    metrics = PascalMetrics(CATEGORIES, rules)
    for sample, detections in images:
        metrics.add(sample, detections)
    return {name.rsplit("/", 1)[1]: value for name, value in metrics.compute().values.items()}


@pytest.mark.parametrize(
    ("image", "wanted", "why"),
    [
        ((truth([A]), found((HALF, 0.9, 0))), 1.0, "an overlap of exactly 0.5 is enough"),
        ((truth([A]), found((FAR, 0.9, 0), (A, 0.8, 0))), 0.5, "one wrong before the right one"),
        ((truth([A]), found((A, 0.9, 0), (A, 0.8, 0))), 1.0, "a second find of an object comes after all recall"),
        ((truth([A, FAR]), found((A, 0.9, 0), (A, 0.8, 0), (FAR, 0.7, 0))), 0.5 + 0.5 * 2 / 3, "but costs precision"),
        (
            (truth([A, [0, 0, 10, 9]]), found((A, 0.9, 0), (A, 0.8, 0))),
            0.5,
            "the best object is claimed also where it is taken and another would do",
        ),
        ((truth([A], difficult=[True]), found((A, 0.9, 0))), math.nan, "a difficult object alone is nothing to find"),
        (
            (truth([A, FAR], difficult=[True, False]), found((A, 0.9, 0), (A, 0.8, 0), (FAR, 0.7, 0))),
            1.0,
            "finding a difficult one, twice even, costs nothing",
        ),
        ((truth([A]), found(([10, 0, 0, 10], 0.9, 0), (A, 0.8, 0))), 1.0, "a box turned inside out is dropped"),
        ((truth([A]), found()), 0.0, "nothing found"),
    ],
)
def test_pascal(image: tuple[Sample, Detections[Array]], wanted: float, why: str) -> None:
    assert score(PASCAL_VOC, image)["a"] == pytest.approx(wanted, nan_ok=True), why


GROUP = truth([[0, 0, 40, 40], FAR], group_of=[True, False])
INSIDE = found(([0, 0, 10, 10], 0.9, 0), ([20, 20, 30, 30], 0.8, 0), (FAR, 0.7, 0))


def test_groups() -> None:
    """Two detections inside a group: V2 drops both, the challenge counts the group as found once."""
    assert score(OPEN_IMAGES_V2, (GROUP, INSIDE))["a"] == pytest.approx(1.0)
    assert score(OPEN_IMAGES_CHALLENGE, (GROUP, INSIDE))["a"] == pytest.approx(1.0)
    lonely = found((FAR, 0.7, 0))
    assert score(OPEN_IMAGES_V2, (GROUP, lonely))["a"] == pytest.approx(1.0)
    assert score(OPEN_IMAGES_CHALLENGE, (GROUP, lonely))["a"] == pytest.approx(0.5)
    assert score(PASCAL_VOC, (GROUP, INSIDE))["a"] == pytest.approx(0.5 * 1 / 3)


def test_group_takes_what_lies_half_inside_it() -> None:
    """Intersection over the detection's own area decides: 50 of 100 is enough, 49 is not."""
    image = truth([[0, 0, 10, 10], FAR], group_of=[True, False])
    wrong_first = found(([0, 5.1, 10, 15.1], 0.9, 0), (FAR, 0.7, 0))
    right_first = found(([0, 5, 10, 15], 0.9, 0), (FAR, 0.7, 0))
    assert score(OPEN_IMAGES_V2, (image, wrong_first))["a"] == pytest.approx(0.5)
    assert score(OPEN_IMAGES_V2, (image, right_first))["a"] == pytest.approx(1.0)


def test_only_verified_classes_count_in_the_challenge() -> None:
    image, seen = truth([A]), truth([A], verified=[1])
    detections = found((FAR, 0.9, 1))
    other = (truth([FAR], labels=[1]), found((FAR, 0.5, 1)))
    assert score(OPEN_IMAGES_CHALLENGE, (image, detections), other)["b"] == pytest.approx(1.0)
    assert score(OPEN_IMAGES_CHALLENGE, (seen, detections), other)["b"] == pytest.approx(0.5)
    assert score(OPEN_IMAGES_V2, (image, detections), other)["b"] == pytest.approx(0.5)


def test_weighted_mean_is_over_all_detections() -> None:
    """Class a: one of one right. Class b: wrong at .9, right at .5. Pooled: right .95, wrong .9, right .5."""
    image = (truth([A, FAR], labels=[0, 1]), found((A, 0.95, 0), (A, 0.9, 1), (FAR, 0.5, 1)))
    each = score(WEIGHTED_PASCAL_VOC, image)
    assert (each["a"], each["b"]) == pytest.approx((1.0, 0.5))
    assert each["mAP@0.5IOU"] == pytest.approx(0.5 + 0.5 * 2 / 3)
    assert score(PASCAL_VOC, image)["mAP@0.5IOU"] == pytest.approx(0.75)


def test_areas_by_hand() -> None:
    """Right, wrong, right of four objects: precision 1, 1/2, 2/3 at recall 1/4, 1/4, 1/2."""
    precision, recall = precision_and_recall(np.array([1.0, 0, 1]), np.array([0.0, 1, 0]), 4)
    assert all_points(precision, recall) == pytest.approx(0.25 * 1 + 0.25 * 2 / 3)
    # Recalls 0, .1, .2 read 1; .3, .4, .5 read 2/3; the other five nothing.
    assert eleven_points(precision, recall) == pytest.approx((3 * 1 + 3 * 2 / 3) / 11)
    assert all_points(precision, recall, 0.3, 1.0) == pytest.approx(0.5 * 2 / 3)
    assert all_points(precision, recall, 0.6, 1.0) == 0.0
    twelve_of_twenty = precision_and_recall(np.ones(12), np.zeros(12), 20)
    assert eleven_points(*twelve_of_twenty) == pytest.approx(7 / 11)


def test_names() -> None:
    names = list(PascalMetrics(CATEGORIES, precision_at_recall(0.2, 0.6)).compute().values)
    assert names[0] == "PrecisionAtRecallBoxes_Precision/mAP@0.5IOU@[0.2,0.6]Recall"
    assert names[1] == "PrecisionAtRecallBoxes_PerformanceByCategory/AP@0.5IOU/a"
    assert (
        "Recall"
        not in next(iter(PascalMetrics(CATEGORIES, precision_at_recall(0, 1)).compute().values)).split("IOU")[1]
    )
    assert (
        next(iter(PascalMetrics(CATEGORIES, PASCAL_VOC_2007).compute().values))
        == "PascalVoc2007Boxes_Precision/mAP@0.5IOU"
    )


def test_nan_and_zero_are_explained() -> None:
    metrics = PascalMetrics(CATEGORIES)
    (line,) = metrics.compute().notes
    assert "no image has an object" in line
    metrics.add(truth([A]), found((FAR, 0.9, 0)))
    lines = metrics.compute().notes
    assert "NaN for classes without objects: b" in lines[0]
    assert "is 0" in lines[1]


def test_matches_of_groups() -> None:
    """The best detection inside a group stands for it; the others inside it are not of the curve."""
    group, single = [0, 0, 20, 20], [50, 50, 60, 60]
    sample = truth([single, group], group_of=[False, True])
    metrics = PascalMetrics(CATEGORIES, OPEN_IMAGES_CHALLENGE)
    metrics.add(sample, found(([1, 1, 5, 5], 0.5, 0), ([2, 2, 9, 9], 0.7, 0), (single, 0.6, 0)))
    (curve,) = metrics.compute().curves
    assert curve.matches.detections.tolist() == [1, 2]
    assert curve.matches.objects.tolist() == [1, 0]
